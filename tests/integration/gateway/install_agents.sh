#!/bin/sh
# Installs the agents and client libraries that test_gateway_agents.py and test_gateway_clients.py drive, apart from
# the project's own environment. Usage: install_agents.sh DIR; then CLAWBACK_AGENTS_DIR=DIR pytest ...
set -eu
dir=${1:?usage: install_agents.sh DIR}
mkdir -p "$dir/npm" "$dir/venv"
(cd "$dir/npm" && npm init -y >/dev/null && npm install --no-audit --no-fund \
    @anthropic-ai/claude-code @openai/codex opencode-ai @qwen-code/qwen-code)
for package in "hermes hermes-agent" "litellm litellm[proxy]" "langchain langchain langchain-openai langchain-anthropic"; do
    name=${package%% *}
    python3.11 -m venv "$dir/venv/$name"
    # shellcheck disable=SC2086
    "$dir/venv/$name/bin/pip" install -q ${package#* }
done
