//! Budget, draw and price of energy over the coming day, as the EnergyPolicy says them.

use andreas_api::energy_policy::{EnergyPolicyStatus, PowerState};
use andreas_api::slim::SlimEnergyPolicy;
use andreas_cluster::policy::rules;
use andreas_model::{StepFunction, Time};
use jiff::Timestamp;
use serde::Serialize;

/// How far ahead, s.
const AHEAD: i64 = 86_400;

/// From an instant (seconds since the epoch) on, this value.
type Step = (i64, Option<i64>);

/// Power over the coming day.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PowerView {
    /// Now, seconds since the epoch.
    now: i64,
    /// Currency of the prices.
    currency: String,
    /// What the operator last wrote of draw and budget.
    state: Option<PowerState>,
    /// Whether the budget is met, and the operator's words; none where it has not said so.
    met: Option<(bool, String)>,
    /// `IT` or `Facility`, with the PUE.
    scope: String,
    /// Budget, W; null where power is not limited.
    budget: Vec<Step>,
    /// The same less the margin that plans leave free, W.
    planned: Vec<Step>,
    /// Price of a kWh, PUE included, millionths of the currency.
    price: Vec<Step>,
}

/// The view of a policy.
pub fn of(policy: &SlimEnergyPolicy, now: Timestamp) -> PowerView {
    let (spec, now) = (&policy.spec, now.as_second());
    let EnergyPolicyStatus { power, conditions, .. } = policy.status.clone().unwrap_or_default();
    let met = conditions.into_iter().find(|condition| condition.type_ == "BudgetMet");
    let budget = rules::budget(spec, now);
    let part = budget.as_ref().map_or(1.0, |budget| 1.0 - budget.margin);
    let watts = |part: f64| {
        let limit = |watts: andreas_model::Watts| rules::is_limit(watts).then_some(watts.0 * part);
        budget.as_ref().map_or_else(|| vec![(now, None)], |budget| steps(&budget.watts, now, limit))
    };
    let scope = rules::scope_factor(spec);
    PowerView {
        now,
        currency: spec.currency.clone(),
        met: met.map(|condition| (condition.status == "True", condition.message)),
        scope: if scope > 1.0 { format!("facility, PUE {}", spec.pue.0) } else { "IT".to_owned() },
        budget: watts(1.0),
        planned: watts(part),
        // Joules to kWh, units to millionths.
        price: steps(&rules::tariff(spec, now), now, |price| Some(price.0 * 3.6e12)),
        state: power,
    }
}

fn steps<T: Copy>(of: &StepFunction<T>, now: i64, value: impl Fn(T) -> Option<f64>) -> Vec<Step> {
    let pieces = of.pieces(Time(now as f64), Time((now + AHEAD) as f64));
    pieces.map(|(from, _, step)| (from.0 as i64, value(step).map(|value| value.round() as i64))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::testing::{NOW, policy};

    #[test]
    fn a_day_of_budget_and_price_begins_now() {
        let now: Timestamp = NOW.parse().unwrap();
        let view = of(&serde_json::from_value(policy()).unwrap(), now);
        let in_hours = |steps: &[Step]| {
            steps.iter().map(|(at, value)| ((at - now.as_second()) / 3_600, *value)).collect::<Vec<_>>()
        };
        // Noon in UTC is 13:00 in Rome: the window ends at 18:00 there, and begins at 8:00 on the next day.
        assert_eq!(in_hours(&view.budget), [(0, Some(3_000)), (5, Some(4_000)), (19, Some(3_000))]);
        assert_eq!(view.planned[0].1, Some(2_850));
        assert_eq!(in_hours(&view.price), [(0, Some(300_000))]);
        assert_eq!(
            (view.met.map(|met| met.0), view.state.map(|state| state.drawn_watts)),
            (Some(true), Some(1_740))
        );
    }

    #[test]
    fn power_that_is_not_limited_has_no_budget() {
        let policy = serde_json::json!({"metadata": {"name": "default"}, "spec": {}});
        let view = of(&serde_json::from_value(policy).unwrap(), NOW.parse().unwrap());
        assert_eq!((view.budget.len(), view.budget[0].1, view.state), (1, None, None));
    }
}
