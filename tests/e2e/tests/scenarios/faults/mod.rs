//! Our programs behind a fault proxy: what an API server, a network and a frozen process can do to them.
//!
//! `make test` runs short forms; with `ANDREAS_LONG=1`, as in `make long WHAT=faults`, every case runs at full length.

mod api_server;
mod large_objects;
mod leaders;
mod outages;
mod replica;
mod soak;
mod writes;
