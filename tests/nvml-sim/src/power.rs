//! Draw and SM clock of a GPU by what runs on it. Pure.
//!
//! ```text
//! draw = idle                                                    without a context
//! draw = idle + (parked - idle) x s(clock) + util x (max - parked) x (clock / highest)^e     with one
//! ```
//!
//! `s` grows from 0 at the idle clock to 1 at the highest: what makes a parked context dear is its clock; on boards where it
//! is not, `s` is 1. The exponent stands for
//! voltage that grows with frequency. The power limit takes the clock down until the draw fits, and never lower than the lowest
//! clock; so a limit below the idle draw changes nothing at idle.

/// Exponent of the dynamic part: between frequency alone (1) and frequency x voltage squared (3).
pub const EXPONENT: f64 = 2.4;

/// What the law looks at. mW and MHz.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Draw without a context.
    pub idle_mw: f64,
    /// Draw with a context that does nothing, at the highest clock.
    pub parked_mw: f64,
    /// Draw at full use and the highest clock.
    pub max_mw: f64,
    /// SM clock without a context.
    pub clock_idle: f64,
    /// Lowest SM clock.
    pub clock_min: f64,
    /// Highest SM clock.
    pub clock_max: f64,
    /// Whether the draw of a parked context follows the clock.
    pub parked_follows_clock: bool,
    /// Clocks are locked at or below this.
    pub clock_lock: Option<f64>,
    /// Power limit.
    pub limit_mw: f64,
    /// Whether a process has a context.
    pub context: bool,
    /// Use, 0 to 1.
    pub util: f64,
}

/// Draw, mW, and SM clock, MHz.
#[must_use]
pub fn draw(load: &Load) -> (f64, f64) {
    let ceiling = load.clock_lock.unwrap_or(load.clock_max).clamp(load.clock_min, load.clock_max);
    if !load.context {
        return (load.idle_mw, load.clock_idle.min(ceiling));
    }
    let at = |clock: f64| {
        let share = ((clock - load.clock_idle) / (load.clock_max - load.clock_idle).max(1.0)).clamp(0.0, 1.0);
        let share = if load.parked_follows_clock { share } else { 1.0 };
        let parked = (load.parked_mw - load.idle_mw) * share;
        let work = load.util.clamp(0.0, 1.0) * (load.max_mw - load.parked_mw);
        load.idle_mw + parked + work * (clock / load.clock_max).powf(EXPONENT)
    };
    if at(ceiling) <= load.limit_mw {
        return (at(ceiling), ceiling);
    }
    let (mut low, mut high) = (load.clock_min.min(ceiling), ceiling);
    if at(low) >= load.limit_mw {
        return (at(low), low);
    }
    for _ in 0..30 {
        let middle = (low + high) / 2.0;
        if at(middle) <= load.limit_mw { low = middle } else { high = middle }
    }
    (at(low), low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a100() -> Load {
        Load {
            idle_mw: 53_700.0,
            parked_mw: 80_000.0,
            max_mw: 400_000.0,
            clock_idle: 210.0,
            clock_min: 210.0,
            clock_max: 1410.0,
            parked_follows_clock: true,
            clock_lock: None,
            limit_mw: 400_000.0,
            context: false,
            util: 0.0,
        }
    }

    #[test]
    fn nothing_lowers_a_bare_idle_gpu() {
        let limited = Load { limit_mw: 1_000.0, clock_lock: Some(210.0), ..a100() };
        assert_eq!(draw(&limited), draw(&a100()));
    }

    #[test]
    fn a_parked_context_costs_and_low_clocks_take_that_back() {
        let parked = Load { context: true, ..a100() };
        assert_eq!(draw(&parked).0, 80_000.0);
        let locked = Load { clock_lock: Some(210.0), ..parked };
        assert_eq!(draw(&locked).0, 53_700.0);
        assert_eq!(draw(&Load { parked_follows_clock: false, ..locked }).0, 80_000.0, "not on every board");
    }

    #[test]
    fn a_limit_slows_work_until_it_fits() {
        let busy = Load { context: true, util: 1.0, ..a100() };
        assert_eq!(draw(&busy), (400_000.0, 1410.0));
        let (watts, clock) = draw(&Load { limit_mw: 250_000.0, ..busy });
        assert!(
            (249_000.0..=250_000.0).contains(&watts) && (1000.0..1300.0).contains(&clock),
            "{watts} {clock}"
        );
        // The floor of the clock is stronger than the limit.
        assert_eq!(draw(&Load { limit_mw: 10_000.0, ..busy }).1, 210.0);
    }
}
