//! Reports out.
