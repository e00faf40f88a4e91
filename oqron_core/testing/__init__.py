"""The conformance kit and the throwaway servers that tests run on."""
