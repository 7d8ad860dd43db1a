//! `kubectl-andreas budget`: the power budget now, its windows, and what is drawn against it, as the operator says.

use andreas_api::energy_policy::{EnergyPolicyStatus, PowerBudgetScope, PowerState};
use andreas_api::names::DEFAULT_POLICY;
use andreas_api::slim::SlimEnergyPolicy;
use andreas_runtime::clock;
use anyhow::Result;
use clap::Args;
use jiff::Timestamp;

use crate::cluster::{Cluster, ConnectArgs, block_on};
use crate::output::{self, OutputArgs, ago, ago_or_in, bar, percent, plain, power};

/// The power budget now, its windows, and what is drawn against it
///
/// All of it is what the operator writes into the status of the EnergyPolicy `default`, at most once a minute: change the budget in
/// its spec. Needs the right to get EnergyPolicies (ClusterRole andreas-power-admin).
#[derive(Debug, Args)]
pub struct BudgetArgs {
    #[command(flatten)]
    cluster: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Width of the bar, characters.
const BAR: usize = 30;

/// Runs the subcommand.
///
/// # Errors
/// When there is no EnergyPolicy, or it may not be read.
pub fn run(args: &BudgetArgs) -> Result<()> {
    let policy = block_on(async {
        let cluster = Cluster::connect(&args.cluster).await?;
        Ok(cluster.get::<SlimEnergyPolicy>(None, DEFAULT_POLICY).await?)
    })?;
    let now = clock::now();
    let status = policy.status.clone().unwrap_or_default();
    let text = |status: &EnergyPolicyStatus| text_of(&policy, status, now);
    output::print(&output::object(args.output, &status, text, |_| "energypolicy/default".to_owned())?)
}

fn text_of(policy: &SlimEnergyPolicy, status: &EnergyPolicyStatus, now: Timestamp) -> String {
    let spec = &policy.spec;
    let budget = &spec.power_budget;
    let mut text = match &status.power {
        Some(power) => drawn(power, policy, now),
        None => "Drawn:     the operator has not said yet\n".to_owned(),
    };
    if let Some(met) = status.conditions.iter().find(|condition| condition.type_ == "BudgetMet") {
        text += &format!(
            "Met:       {}, {}\n",
            if met.status == "True" { "yes" } else { "no" },
            plain(&met.message)
        );
    }
    if !budget.windows.is_empty() {
        text += &format!("Windows:   {}\n", plain(&budget.time_zone));
    }
    for window in &budget.windows {
        let (from, to) = (plain(&window.from), plain(&window.to));
        text += &format!("           {from} to {to}  {}\n", power(window.watts as f64));
    }
    text
}

fn drawn(state: &PowerState, policy: &SlimEnergyPolicy, now: Timestamp) -> String {
    let spec = &policy.spec;
    let limit = |watts: Option<i64>| watts.map_or("no limit".to_owned(), |watts| power(watts as f64));
    let scope = match spec.power_budget.scope {
        PowerBudgetScope::Facility => format!("facility, PUE {}", plain(&spec.pue.0)),
        PowerBudgetScope::IT => "IT".to_owned(),
    };
    let mut text = format!("Budget:    {} ({scope})", limit(state.budget_watts));
    if let Some(change) = &state.next_change {
        let when = ago_or_in(change.0.as_second() - now.as_second());
        text += &format!(", {} {when}", limit(state.next_budget_watts));
    }
    let drawn = power(state.drawn_watts as f64);
    let seen = ago(state.time.0.as_second() - now.as_second());
    text += &match state.budget_watts {
        Some(watts) => {
            let part = state.drawn_watts as f64 / watts.max(1) as f64;
            let margin = spec.power_budget.margin_percent;
            let most = power(watts as f64 * (1.0 - f64::from(margin) / 100.0));
            format!(
                "\nDrawn:     {drawn}  {} {}, seen {seen}\n           plans use at most {most} ({margin} % stay free)\n",
                bar(part, BAR),
                percent(part)
            )
        }
        None => format!("\nDrawn:     {drawn}, seen {seen}\n"),
    };
    text += &format!("           without any job {}\n", power(state.idle_watts as f64));
    let price = state.kwh_cost_micros as f64 / 1e6;
    text + &format!("Energy:    {price:.4} {}/kWh now, PUE included\n", plain(&spec.currency))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::testing::{NOW, policy};

    fn of(policy: &SlimEnergyPolicy) -> String {
        text_of(policy, &policy.status.clone().unwrap_or_default(), NOW.parse().unwrap())
    }

    fn fixture() -> SlimEnergyPolicy {
        serde_json::from_value(policy()).unwrap()
    }

    #[test]
    fn the_budget_is_compared_with_the_draw() {
        insta::assert_snapshot!(of(&fixture()));
    }

    #[test]
    fn where_power_is_not_limited_or_nothing_is_said_yet_it_says_so() {
        let mut policy = fixture();
        policy.status.as_mut().unwrap().power.as_mut().unwrap().budget_watts = None;
        assert!(of(&policy).starts_with("Budget:    no limit (IT)"), "{}", of(&policy));
        policy.status = None;
        assert!(of(&policy).starts_with("Drawn:     the operator has not said yet"), "{}", of(&policy));
    }
}
