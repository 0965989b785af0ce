"""The service that Envoy calls: ext_proc, access log and health on one port."""
