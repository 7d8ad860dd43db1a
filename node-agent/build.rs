//! How the agent is linked.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Every process of a position-independent program reads the list of addresses that it puts right at its start: 650 kB, some ten
    // when packed. The image's glibc (2.36) reads that; a linker that does not know the option says so and goes on.
    if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
