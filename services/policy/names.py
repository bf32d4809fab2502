"""Headers and bounds that the built-in server and the one before an external engine share."""

RELEASE_HEADER = "x-clawback-release"
CAPTURE_HEADER = "x-clawback-capture"
SCENARIO_HEADER = "x-reef-scenario"
DEFAULT_SCENARIO = "default"
MAX_BODY_BYTES = 64 * 1024 * 1024
