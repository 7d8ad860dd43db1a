//! `kubectl-andreas budget`: the power budget now, its windows, and what is drawn against it.

mod view;

use andreas_runtime::clock;
use anyhow::Result;
use clap::Args;
use jiff::Timestamp;

pub use self::view::Budget;

use crate::cluster::{Cluster, ConnectArgs, block_on};
use crate::inventory::Objects;
use crate::output::{self, OutputArgs, ago_or_in, bar, percent, plain, plain_lines, power};

/// Budget: the power budget now, its windows, and what is drawn against it.
///
/// Drawn is what the agents report of GPUs; machines beside them count by the policy or by the table of boards.
/// Change the budget in the EnergyPolicy `default`. Needs the right to list GpuNodes (ClusterRole andreas-power-admin).
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
/// When the GpuNodes may not be listed.
pub fn run(args: &BudgetArgs) -> Result<()> {
    let objects = block_on(async {
        let cluster = Cluster::connect(&args.cluster).await?;
        Ok(Objects::read(&cluster).await?)
    })?;
    for note in &objects.notes {
        output::print_error(&format!("note: {}", plain_lines(note)));
    }
    let now = clock::now();
    let budget = Budget::new(&objects, &objects.views(), now);
    let text = |budget: &Budget| text_of(budget, now);
    output::print(&output::object(args.output, &budget, text, |_| "energypolicy/default".to_owned())?)
}

fn text_of(budget: &Budget, now: Timestamp) -> String {
    let limit = |watts: Option<i64>| watts.map_or("no limit".to_owned(), |watts| power(watts as f64));
    let scope = match budget.scope {
        "Facility" => format!("facility, PUE {}", budget.pue),
        _ => "IT".to_owned(),
    };
    let mut text = format!("Budget:    {} ({scope})", limit(budget.watts));
    if let Some(changes) = budget.changes {
        let when = ago_or_in(changes.as_second() - now.as_second());
        text += &format!(", {} {when}", limit(budget.then_watts));
    }
    text += "\n";
    let drawn = power(budget.drawn_watts as f64);
    match budget.watts {
        Some(watts) => {
            let part = budget.drawn_watts as f64 / watts.max(1) as f64;
            text += &format!("Drawn:     {drawn}  {} {}\n", bar(part, BAR), percent(part));
            let free = watts as f64 * (1.0 - f64::from(budget.margin_percent) / 100.0);
            text += &format!(
                "           plans use at most {} ({} % stay free)\n",
                power(free),
                budget.margin_percent
            );
        }
        None => text += &format!("Drawn:     {drawn}\n"),
    }
    text += &format!(
        "           GPUs {}, machines {}",
        power(budget.gpu_watts as f64),
        power(budget.machine_watts as f64)
    );
    text += &format!(", {} nodes\n", budget.nodes);
    if budget.unreported > 0 {
        text += &format!("           nodes without a report, not counted: {}\n", budget.unreported);
    }
    if let Some(planned) = budget.planned_watts {
        text += &format!("Planned:   jobs {}\n", power(planned as f64));
    }
    if let (Some(met), Some(message)) = (budget.met, &budget.message) {
        text += &format!("Met:       {}, {}\n", if met { "yes" } else { "no" }, plain(message));
    }
    let price = format!("{:.4}", budget.price_per_kwh);
    text += &format!("Energy:    {price} {}/kWh now, PUE included\n", plain(&budget.currency));
    if !budget.windows.is_empty() {
        text += &format!("Windows:   {}\n", plain(&budget.time_zone));
    }
    for window in &budget.windows {
        let now = if window.now { "  now" } else { "" };
        let (from, to) = (plain(&window.from), plain(&window.to));
        text += &format!("           {from} to {to}  {}{now}\n", power(window.watts as f64));
    }
    if !budget.policy {
        text += "There is no EnergyPolicy: these are its defaults.\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::testing::{NOW, objects};

    fn of(objects: &Objects) -> String {
        let now = NOW.parse().unwrap();
        text_of(&Budget::new(objects, &objects.views(), now), now)
    }

    #[test]
    fn the_budget_of_the_present_window_is_compared_with_the_draw() {
        insta::assert_snapshot!(of(&objects()));
    }

    #[test]
    fn without_a_policy_the_defaults_hold_and_power_is_not_limited() {
        let mut objects = objects();
        objects.policy = None;
        objects.jobs = None;
        let text = of(&objects);
        assert!(text.starts_with("Budget:    no limit (IT)\n"), "{text}");
        assert!(text.contains("0.2600 EUR/kWh") && text.ends_with("these are its defaults.\n"), "{text}");
        assert!(!text.contains("Planned:"), "{text}");
    }

    #[test]
    fn a_budget_of_the_facility_counts_the_pue() {
        let mut objects = objects();
        let it = Budget::new(&objects, &objects.views(), NOW.parse().unwrap());
        let policy = objects.policy.as_mut().unwrap();
        policy.spec.power_budget.scope = andreas_api::energy_policy::PowerBudgetScope::Facility;
        let facility = Budget::new(&objects, &objects.views(), NOW.parse().unwrap());
        assert_eq!((it.watts, it.scope, facility.scope), (Some(3000), "IT", "Facility"));
        assert_eq!(facility.drawn_watts, (it.drawn_watts as f64 * 1.5).round() as i64);
    }
}
