//! Every job starts at last, and ends, at any load: under other systems' methods as well.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

#[path = "../../../crates/planner/tests/every_method/starvation.rs"]
mod every_method;
mod methods;

use methods::Method;

#[test]
fn without_ageing_somebody_never_starts() {
    let starves = |seed| every_method::somebody_never_starts_without_ageing(Method::Priority, seed);
    // Then the property that holds with ageing does not.
    assert!((0..10).any(starves));
}
