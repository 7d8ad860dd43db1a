//! The policy for the planner: prices and budget over time, and the cost of lateness.

use std::collections::BTreeSet;

use andreas_api::energy_policy::{BudgetWindow, PowerBudgetScope, TariffWindow};
use andreas_api::{Decimal, EnergyPolicySpec};
use andreas_model::windows::{self, Window, daily, mean_beyond};
use andreas_model::{CostRate, EnergyPrice, Seconds, Tariff, Time, Watts};
use andreas_planner::{Lateness, PowerBudget};
use jiff::tz::TimeZone;

/// The budget between windows if only windows limit power: above any cluster's draw.
const UNLIMITED: Watts = Watts(1e12);
/// Most that a budget may allow, as in the schema of the policy.
const MOST: Watts = Watts(1e9);

/// Whether what a budget allows is a limit, and not [`UNLIMITED`] less a margin.
pub fn is_limit(allowed: Watts) -> bool {
    allowed.0 <= MOST.0
}

/// Power usage effectiveness, at least 1.
pub fn pue(policy: &EnergyPolicySpec) -> f64 {
    policy.pue.value_or(1.0).max(1.0)
}

fn price(per_kwh: &Decimal, policy: &EnergyPolicySpec) -> EnergyPrice {
    EnergyPrice::per_kwh(per_kwh.value_or(0.0), pue(policy))
}

/// The policy's time zone of this name; UTC if it is not known, which the policy's status then says.
pub fn zone(name: &str) -> TimeZone {
    windows::time_zone(name).unwrap_or(TimeZone::UTC)
}

/// Time zones of the policy that this program does not know.
pub fn unknown_zones(policy: &EnergyPolicySpec) -> BTreeSet<&str> {
    let named = [policy.prices.tariff.time_zone.as_str(), policy.power_budget.time_zone.as_str()];
    named.into_iter().filter(|name| windows::time_zone(name).is_none()).collect()
}

/// Energy price over time, PUE included; `now` in seconds since the epoch.
pub fn tariff(policy: &EnergyPolicySpec, now: i64) -> Tariff {
    let tariff = &policy.prices.tariff;
    let window = |w: &TariffWindow| Window::new(&w.from, &w.to, price(&w.energy_per_kwh, policy));
    let windows: Vec<_> = tariff.windows.iter().filter_map(window).collect();
    let flat = price(&policy.prices.energy_per_kwh, policy);
    mean_beyond(daily(&windows, flat, &zone(&tariff.time_zone), now), |price| price.0, EnergyPrice)
}

/// Energy price at an instant, PUE included.
pub fn price_at(policy: &EnergyPolicySpec, at: i64) -> EnergyPrice {
    let flat = || price(&policy.prices.energy_per_kwh, policy);
    tariff(policy, at).at(Time(at as f64)).unwrap_or_else(flat)
}

/// The power budget over time.
pub fn budget(policy: &EnergyPolicySpec, now: i64) -> Option<PowerBudget> {
    let budget = &policy.power_budget;
    if !budget.limits_power() {
        return None;
    }
    let watts = |w: i64| Watts(w.max(1) as f64);
    let window = |w: &BudgetWindow| Window::new(&w.from, &w.to, watts(w.watts));
    let windows: Vec<_> = budget.windows.iter().filter_map(window).collect();
    let base = budget.watts.map_or(UNLIMITED, watts);
    Some(PowerBudget {
        // Watts cost in far periods what they do in the near ones, which are priced by their means too. As a bound the mean is a
        // guess. Where a high window is shorter than a job's grace period, a far start may be priced that never comes; a job that needs more
        // than the mean has no far start, though it has one each night. Neither matters near, where plans are carried out.
        watts: mean_beyond(daily(&windows, base, &zone(&budget.time_zone), now), |watts| watts.0, Watts),
        margin: (f64::from(budget.margin_percent) / 100.0).clamp(0.0, 0.9),
        scope_factor: scope_factor(policy),
    })
}

/// What IT power is multiplied by in the scope of the budget.
pub fn scope_factor(policy: &EnergyPolicySpec) -> f64 {
    if policy.power_budget.scope == PowerBudgetScope::Facility { pue(policy) } else { 1.0 }
}

/// Cost of lateness and time in the system besides the weights.
pub fn lateness(policy: &EnergyPolicySpec) -> Lateness {
    let prices = &policy.prices;
    let aging = policy.seconds(|policy| &policy.prices.aging_period);
    Lateness {
        turnaround_share: prices.turnaround_share.value_or(0.1),
        late_fixed: Seconds(policy.seconds(|policy| &policy.prices.missed_deadline_as) as f64),
        aging: (aging > 0).then_some(Seconds(aging as f64)),
    }
}

/// Time lost by a stop and a resume.
pub fn restart_time(policy: &EnergyPolicySpec) -> Seconds {
    Seconds(policy.seconds(|policy| &policy.preemption.restart_time) as f64)
}

/// What a restart must gain beyond the time that it loses, as seconds of the job's weight and draw.
pub fn restart_wear(policy: &EnergyPolicySpec) -> Seconds {
    Seconds(policy.seconds(|policy| &policy.preemption.restart_wear) as f64)
}

/// Cost per second of lateness of a job with this weight.
pub fn late_rate(policy: &EnergyPolicySpec, weight: i32) -> CostRate {
    let hour = policy.prices.lateness_per_hour.value_or(0.0);
    CostRate(f64::from(weight.max(0)) * hour / 3_600.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(spec: serde_json::Value) -> EnergyPolicySpec {
        serde_json::from_value(spec).expect("a policy")
    }

    const NOON: i64 = 20_000 * 86_400 + 12 * 3_600;

    #[test]
    fn energy_costs_what_its_window_says_times_pue() {
        let night = json!({"timeZone": "Etc/GMT-2", "windows": [{"from": "22:00", "to": "06:00", "energyPerKWh": "0.1"}]});
        let policy = policy(json!({"pue": "1.5", "prices": {"energyPerKWh": "0.2", "tariff": night}}));
        let at = |hours: i64| price_at(&policy, NOON + hours * 3_600).0 * 3.6e6;
        // 22:00 there is 20:00 in UTC, eight hours after noon.
        for (hours, price) in [(0, 0.3), (7, 0.3), (8, 0.15), (13, 0.15), (15, 0.15), (16, 0.3)] {
            assert!((at(hours) - price).abs() < 1e-12, "{hours} h after noon: {}", at(hours));
        }
    }

    #[test]
    fn a_far_day_costs_as_much_as_a_near_one() {
        let night = json!({"windows": [{"from": "22:00", "to": "06:00", "energyPerKWh": "0.14"}]});
        let policy = policy(json!({"pue": "1", "prices": {"energyPerKWh": "0.2", "tariff": night}}));
        let steps = tariff(&policy, NOON);
        for hours in [0, 24, 64, 128, 256] {
            let (from, to) = (NOON + hours * 3_600, NOON + (hours + 24) * 3_600);
            let pieces = steps.pieces(Time(from as f64), Time(to as f64));
            let mean = pieces.map(|(a, b, price)| price.0 * (b - a).0).sum::<f64>() / 86_400.0 * 3.6e6;
            assert!((mean - 0.18).abs() < 1e-9, "from {hours} h after noon: {mean}");
        }
        // Without windows it stays one price.
        assert_eq!(tariff(&EnergyPolicySpec::default(), NOON).windows().len(), 1);
    }

    #[test]
    fn a_far_day_has_as_many_watts_as_a_near_one() {
        let watts = |spec: serde_json::Value, hours: i64| {
            let budget = budget(&policy(json!({"powerBudget": spec})), NOON).expect("a budget");
            budget.watts.at(Time((NOON + hours * 3_600) as f64)).expect("in order").0
        };
        let night = json!({"watts": 20_000, "windows": [{"from": "22:00", "to": "06:00", "watts": 50_000}]});
        // 8 h of 50 kW and 16 h of 20 kW a day.
        for (hours, expected) in
            [(0, 20_000.0), (12, 50_000.0), (24, 20_000.0), (128, 30_000.0), (256, 30_000.0)]
        {
            assert!((watts(night.clone(), hours) - expected).abs() < 1e-6, "{hours} h after noon");
        }
        assert_eq!(watts(json!({"watts": 20_000}), 256), 20_000.0);
    }

    #[test]
    fn no_budget_is_none_and_a_window_alone_limits_only_itself() {
        assert!(budget(&EnergyPolicySpec::default(), NOON).is_none());
        let window = json!({"from": "12:00", "to": "13:00", "watts": 5_000});
        let policy = policy(json!({"powerBudget": {"windows": [window]}}));
        let budget = budget(&policy, NOON).expect("a budget");
        assert_eq!(budget.watts.at(Time(NOON as f64)), Some(Watts(5_000.0)));
        let later = budget.watts.at(Time((NOON + 3_600) as f64)).expect("within the day");
        // The greatest margin leaves a tenth.
        assert!(is_limit(Watts(5_000.0)) && !is_limit(later) && !is_limit(later * 0.1), "{later:?}");
        assert_eq!((budget.margin, budget.scope_factor), (0.05, 1.0));
    }

    #[test]
    fn a_window_of_the_budget_is_in_its_time_zone() {
        let night = json!({"from": "22:00", "to": "06:00", "watts": 5_000});
        let policy = policy(json!({"powerBudget": {"timeZone": "Etc/GMT-2", "windows": [night]}}));
        let budget = budget(&policy, NOON).expect("a budget");
        // 22:00 there is 20:00 in UTC, eight hours after noon.
        for (hours, limited) in [(0, false), (7, false), (8, true), (15, true), (16, false)] {
            let watts = budget.watts.at(Time((NOON + hours * 3_600) as f64)).expect("within the day");
            assert_eq!(watts.0 < 1e9, limited, "{hours} h after noon: {watts:?}");
        }
    }

    #[test]
    fn lateness_has_its_defaults_and_its_price() {
        let found = lateness(&EnergyPolicySpec::default());
        assert_eq!((found.turnaround_share, found.late_fixed), (0.1, Seconds(900.0)));
        assert_eq!(found.aging, Some(Seconds(86_400.0)));
        assert_eq!(lateness(&policy(json!({"prices": {"agingPeriod": "0s"}}))).aging, None);
        assert_eq!(late_rate(&EnergyPolicySpec::default(), 10), CostRate(0.2 / 3_600.0));
        assert_eq!(restart_time(&EnergyPolicySpec::default()), Seconds(120.0));
        assert_eq!(restart_wear(&EnergyPolicySpec::default()), andreas_planner::DEFAULT_WEAR);
    }

    #[test]
    fn unknown_zones_are_named() {
        let policy = policy(json!({"powerBudget": {"watts": 1, "timeZone": "Mars/Phobos"}}));
        assert_eq!(unknown_zones(&policy), BTreeSet::from(["Mars/Phobos"]));
        assert!(unknown_zones(&EnergyPolicySpec::default()).is_empty());
    }
}
