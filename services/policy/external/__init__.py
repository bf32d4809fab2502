"""vLLM or SGLang in place of the built-in engine: releases are put into it, requests name the one they want."""
