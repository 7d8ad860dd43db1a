//! Lets libFuzzer search one target; `ANDREAS_FUZZ_TARGET` names it.
#![no_main]

use std::sync::OnceLock;

use andreas_fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

static CHOSEN: OnceLock<&'static Target> = OnceLock::new();

fn chosen() -> &'static Target {
    CHOSEN.get_or_init(|| {
        let name = std::env::var("ANDREAS_FUZZ_TARGET").unwrap_or_default();
        TARGETS.iter().find(|t| t.name == name).unwrap_or_else(|| {
            let names: Vec<_> = TARGETS.iter().map(|t| t.name).collect();
            panic!("ANDREAS_FUZZ_TARGET must be one of {}", names.join(", "))
        })
    })
}

fuzz_target!(|bytes: &[u8]| (chosen().run)(bytes));
