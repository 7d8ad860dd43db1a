//! The policy for the planner: prices and budget over time, and the cost of lateness.

use andreas_api::EnergyPolicySpec;
use andreas_api::energy_policy::PowerBudgetScope;
use andreas_api::names::ANNOTATION_MAX_WEIGHT;
use andreas_core::{CostRate, EnergyPrice, Seconds, Steps, Tariff, Time, Watts};
use andreas_planner::{Lateness, PowerBudget};
use andreas_runtime::watch::ObjectKey;
use kube::ResourceExt;

use crate::index::ClusterIndex;

const DAY: i64 = 86_400;
/// Days for which windows are laid out: beyond the planner's longest period.
const AHEAD_DAYS: i64 = 4;

/// Minutes of the day from `HH:MM`; `None` if it is no time of day.
fn minutes(text: &str) -> Option<i64> {
    let (hours, minutes) = text.split_once(':')?;
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    ((0..24).contains(&hours) && (0..60).contains(&minutes)).then_some(hours * 60 + minutes)
}

/// Daily windows (UTC) as steps, from a day before `now` to some days after it. The first window of the list
/// that covers an instant counts, else `base`.
fn daily<T: Copy + PartialEq>(windows: &[(&str, &str, T)], base: T, now: i64) -> Steps<T> {
    let windows: Vec<(i64, i64, T)> =
        windows.iter().filter_map(|(from, to, value)| Some((minutes(from)?, minutes(to)?, *value))).collect();
    let covers = |(from, to, _): &(i64, i64, T), minute: i64| {
        if from < to { (*from..*to).contains(&minute) } else { minute >= *from || minute < *to }
    };
    let value = |minute: i64| windows.iter().find(|w| covers(w, minute)).map_or(base, |(.., value)| *value);
    let mut edges: Vec<i64> = windows.iter().flat_map(|(from, to, _)| [*from, *to]).chain([0]).collect();
    edges.sort_unstable();
    edges.dedup();
    let today = now.div_euclid(DAY);
    let mut steps: Vec<(Time, T)> = Vec::new();
    for day in today - 1..=today + AHEAD_DAYS {
        for edge in &edges {
            let value = value(*edge);
            if steps.last().is_none_or(|(_, last)| *last != value) {
                steps.push((Time((day * DAY + edge * 60) as f64), value));
            }
        }
    }
    Steps::new(steps).unwrap_or_else(|_| Steps::flat(base))
}

fn price(micros: i64, policy: &EnergyPolicySpec) -> EnergyPrice {
    EnergyPrice::per_kwh(micros.max(0) as f64 / 1e6, pue(policy))
}

/// Power usage effectiveness, at least 1.
pub fn pue(policy: &EnergyPolicySpec) -> f64 {
    (f64::from(policy.pue_milli) / 1_000.0).max(1.0)
}

/// Energy price over time, PUE included; `now` in seconds since the epoch.
pub fn tariff(policy: &EnergyPolicySpec, now: i64) -> Tariff {
    let windows: Vec<_> = policy
        .tariff
        .iter()
        .map(|w| (w.from.as_str(), w.to.as_str(), price(w.price_per_kwh_micros, policy)))
        .collect();
    daily(&windows, price(policy.price_per_kwh_micros, policy), now)
}

/// Energy price at an instant, PUE included.
pub fn price_at(policy: &EnergyPolicySpec, at: i64) -> EnergyPrice {
    tariff(policy, at).at(Time(at as f64)).unwrap_or_else(|| price(policy.price_per_kwh_micros, policy))
}

/// The power budget over time; `look_ahead`: the longest grace period.
pub fn budget(policy: &EnergyPolicySpec, now: i64, look_ahead: Seconds) -> Option<PowerBudget> {
    /// Base power if only windows limit it, W: above any cluster's draw.
    const UNLIMITED: f64 = 1e12;
    if policy.power_budget_watts.is_none() && policy.windows.is_empty() {
        return None;
    }
    let watts = |w: i64| Watts(w.max(1) as f64);
    let windows: Vec<_> = policy
        .windows
        .iter()
        .map(|w| (w.from.as_str(), w.to.as_str(), watts(w.power_budget_watts)))
        .collect();
    let base = policy.power_budget_watts.map_or(Watts(UNLIMITED), watts);
    Some(PowerBudget {
        watts: daily(&windows, base, now),
        margin: (f64::from(policy.budget_margin_milli) / 1_000.0).clamp(0.0, 0.9),
        scope_factor: if policy.power_budget_scope == PowerBudgetScope::Facility { pue(policy) } else { 1.0 },
        look_ahead,
    })
}

/// Cost of lateness and time in the system besides the weights.
pub fn lateness(policy: &EnergyPolicySpec) -> Lateness {
    Lateness {
        turnaround_share: f64::from(policy.turnaround_share_milli.max(0)) / 1_000.0,
        late_fixed: Seconds(f64::from(policy.miss_seconds.max(0))),
        aging: (policy.aging_hours > 0).then(|| Seconds(f64::from(policy.aging_hours) * 3_600.0)),
    }
}

/// Effective weight of a job, in plans and costs. It is the job's own, bounded by the namespace's annotation
/// `andreas.dev/max-weight`. An annotation that is not a whole number is ignored.
pub fn bounded_weight(index: &ClusterIndex, namespace: &str, weight: i32) -> i32 {
    let key = ObjectKey { namespace: String::new(), name: namespace.to_owned() };
    let annotations = index.namespaces.get(&key).map(|namespace| namespace.annotations());
    let bound = annotations.and_then(|all| all.get(ANNOTATION_MAX_WEIGHT)).and_then(|text| text.parse().ok());
    bound.map_or(weight, |bound: i32| weight.min(bound.max(1)))
}

/// Cost per second of lateness of a job with this weight.
pub fn late_rate(policy: &EnergyPolicySpec, weight: i32) -> CostRate {
    let hour = policy.lateness_price_per_hour_micros.max(0) as f64 / 1e6;
    CostRate(f64::from(weight.max(0)) * hour / 3_600.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_api::energy_policy::{BudgetWindow, TariffWindow};

    const NOON: i64 = 20_000 * DAY + 12 * 3_600;

    #[test]
    fn a_window_that_passes_midnight_holds_on_both_sides() {
        let night = TariffWindow { from: "22:00".into(), to: "06:00".into(), price_per_kwh_micros: 100_000 };
        let policy =
            EnergyPolicySpec { tariff: vec![night], pue_milli: 1_000, ..EnergyPolicySpec::default() };
        let at = |hours: i64| price_at(&policy, NOON + hours * 3_600).0 * 3.6e6;
        for (hours, price) in [(0, 0.2), (9, 0.2), (10, 0.1), (13, 0.1), (17, 0.1), (18, 0.2)] {
            assert!((at(hours) - price).abs() < 1e-12, "{hours} h after noon: {}", at(hours));
        }
        assert_eq!(
            tariff(&policy, NOON).next_edge(Time(NOON as f64)),
            Some(Time((NOON + 10 * 3_600) as f64))
        );
    }

    #[test]
    fn no_budget_is_none_and_a_window_alone_limits_only_itself() {
        assert!(budget(&EnergyPolicySpec::default(), NOON, Seconds(60.0)).is_none());
        let window = BudgetWindow { from: "12:00".into(), to: "13:00".into(), power_budget_watts: 5_000 };
        let policy = EnergyPolicySpec { windows: vec![window], ..EnergyPolicySpec::default() };
        let budget = budget(&policy, NOON, Seconds(60.0)).expect("a budget");
        assert_eq!(budget.watts.at(Time(NOON as f64)), Some(Watts(5_000.0)));
        assert!(budget.watts.at(Time((NOON + 3_600) as f64)).is_some_and(|w| w.0 > 1e9));
        assert_eq!((budget.margin, budget.scope_factor), (0.05, 1.0));
    }

    #[test]
    fn a_namespace_bounds_the_weight_of_its_jobs() {
        use crate::index::SlimNamespace;
        use andreas_runtime::watch::Index;

        let mut index = ClusterIndex::new();
        let mut namespace = |version: u32, bound: &str| {
            let object: SlimNamespace = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "team", "resourceVersion": version.to_string(),
                    "annotations": {"andreas.dev/max-weight": bound}}}))
            .expect("a namespace");
            index.apply(object);
            [5, 500].map(|weight| bounded_weight(&index, "team", weight))
        };
        assert_eq!(namespace(1, "20"), [5, 20]);
        assert_eq!(namespace(2, "0"), [1, 1]);
        assert_eq!(namespace(3, "a lot"), [5, 500]);
        assert_eq!(bounded_weight(&index, "other", 500), 500);
    }
}
