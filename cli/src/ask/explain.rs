//! `kubectl-andreas explain`: why a job waits or runs, and what would help it.

use andreas_api::query::{Candidate, Explanation, path};
use anyhow::Result;
use clap::Args;
use jiff::Timestamp;

use super::transport::Operator;
use super::{AskArgs, text};
use crate::cluster::block_on;
use crate::name;
use crate::output::{self, Column, OutputArgs, duration, money, plain, power};

/// Explain: why a job waits or runs where it does, what each configuration would cost, and what would help.
///
/// Shows up to three changes that would start the job at least a minute sooner, or make it more probable by ten percent that it is on
/// time. Nothing is changed. Needs the right to get the TrainingJob.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Name of the TrainingJob
    #[arg(value_name = "JOB", value_parser = name::job)]
    job: String,
    /// Try changes also where the plan has more than 300 jobs; takes up to some ten seconds
    #[arg(long)]
    changes: bool,
    #[command(flatten)]
    ask: AskArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Cheapest configurations shown without `-o wide`.
const SHOWN: usize = 6;

const CANDIDATES: [Column<Candidate>; 12] = [
    Column::text("  GPUS", |c| format!("  {}", c.gpus)),
    Column::text("TYPE", |c| c.gpu_type.clone()),
    Column::number("NODES", |c| c.nodes.to_string()),
    Column::text("LIMIT", |c| c.limit_watts.map(|watts| power(f64::from(watts))).unwrap_or_default()),
    Column::number("TIME", |c| duration(c.seconds)),
    Column::number("ENERGY", |c| money(c.cost.energy_cost_micros)),
    Column::number("LATENESS", |c| money(c.cost.lateness_cost_micros)),
    Column::number("TURNAROUND", |c| money(c.cost.turnaround_cost_micros)),
    Column::number("COST", |c| money(c.cost.total_micros())),
    Column::number("POWER", |c: &Candidate| power(f64::from(c.watts))).wide(),
    Column::number("ON TIME", |c: &Candidate| {
        c.on_time_percent.map(|p| format!("{p} %")).unwrap_or_default()
    })
    .wide(),
    Column::text("NOW", |c| match (c.current, c.obstacle) {
        (true, _) => "planned".to_owned(),
        (false, None) => "fits".to_owned(),
        (false, Some(obstacle)) => format!("no: {}", obstacle.as_str().to_lowercase()),
    }),
];

/// Runs the subcommand.
///
/// # Errors
/// When the cluster or the operator refuses, or there is no such job.
pub fn run(args: &ExplainArgs) -> Result<()> {
    let explanation: Explanation = block_on(async {
        let operator = Operator::connect(&args.ask).await?;
        let path = if args.changes { path::explain_with_changes } else { path::explain };
        operator.get(&path(&operator.namespace, &args.job)).await
    })?;
    let wide = args.output.format == output::Format::Wide;
    let text = |e: &Explanation| text_of(e, wide, Timestamp::now());
    output::print(&output::object(args.output, &explanation, text, |e| {
        format!("trainingjob/{}", e.job.name)
    })?)
}

fn text_of(e: &Explanation, wide: bool, now: Timestamp) -> String {
    let job = &e.job;
    let mut text = format!("Job:       {}/{}, {}", plain(&e.namespace), plain(&job.name), job.phase.as_str());
    if let Some(position) = job.position {
        text += &format!(", number {position} of those that wait");
    }
    text += "\n";
    if let Some(ahead) = &job.ahead {
        text += &format!("Ahead:     {}\n", text::jobs(ahead));
    }
    match &job.expected {
        Some(expected) => text += &text::expected(job, expected, &e.currency, now),
        None => text += "Expected:  nothing yet\n",
    }
    if let Some(decided) = &e.decided {
        let reason =
            decided.reason.as_deref().map(|reason| format!(", {}", plain(reason))).unwrap_or_default();
        text += &format!(
            "Decision:  {}{reason} ({}, {})\n",
            plain(&decided.decision.to_lowercase()),
            plain(&decided.method),
            text::ago(&decided.at, now)
        );
        if let Some(message) = &decided.message {
            text += &format!("           {}\n", plain(message));
        }
        if let Some(jobs) = &decided.in_the_way {
            text += &format!("           in the way: {}\n", text::jobs(jobs));
        }
    } else if let Some(reason) = &job.reason {
        text += &format!("Reason:    {}\n", plain(reason));
    }
    let cheapest = if wide { e.candidates.len() } else { SHOWN };
    // The planned one in any case: a run that tries a type may cost more than others.
    let rows = e.candidates.iter().enumerate().filter(|(n, c)| *n < cheapest || c.current);
    let shown: Vec<Candidate> = rows.map(|(_, c)| c.clone()).collect();
    if !shown.is_empty() {
        text +=
            &format!("Configurations, cheapest first (cost in {} if it started now):\n", plain(&e.currency));
        text += &output::table(&CANDIDATES, &shown, wide, true);
        if shown.len() < e.candidates.len() {
            text += &format!("  and {} more: -o wide\n", e.candidates.len() - shown.len());
        }
    }
    text + &text::changes(e, now)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_planned_configuration_is_shown_however_many_are_cheaper() {
        let at = "2026-01-01T00:00:00Z";
        let text = |candidates: usize, planned: usize, wide: bool| {
            let one = |n: usize| {
                let cost = json!({"energyCostMicros": n, "latenessCostMicros": 0, "turnaroundCostMicros": 0});
                json!({"gpuType": format!("T{n}"), "gpus": 1, "nodes": 1, "seconds": 60, "watts": 300, "cost": cost,
                    "current": n == planned})
            };
            let candidates: Vec<_> = (0..candidates).map(one).collect();
            let answer = json!({"namespace": "team", "candidates": candidates, "changes": [], "currency": "EUR",
                "job": {"name": "a", "phase": "Running", "weight": 10, "gpus": "1", "created": at}});
            let answer = serde_json::from_value(answer).expect("an answer");
            text_of(&answer, wide, at.parse().expect("an instant"))
        };
        let rows = |text: &str| text.lines().filter(|line| line.starts_with("  1 ")).count();
        let dear = text(9, 7, false);
        assert_eq!(rows(&dear), SHOWN + 1);
        assert!(dear.contains("T7 ") && dear.contains("  planned\n"), "{dear}");
        assert!(dear.contains("  and 2 more: -o wide\n"), "{dear}");
        let cheap = text(9, 2, false);
        assert_eq!(rows(&cheap), SHOWN);
        assert!(cheap.contains("  planned\n") && cheap.contains("  and 3 more: -o wide\n"), "{cheap}");
        let whole = text(9, 7, true);
        assert_eq!((rows(&whole), whole.contains("more: -o wide")), (9, false), "{whole}");
        assert!(!text(0, 0, false).contains("Configurations"));
    }
}
