//! What the servers share: telemetry, admin server, TLS with reload, leases, shutdown.
