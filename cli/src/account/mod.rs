//! `kubectl-andreas acct`: energy, money, GPU-hours and lateness of jobs.
//!
//! **Flows**: statuses of TrainingJobs in; one [`Sum`] for each group out. The operator has counted energy and money; nothing is
//! priced here.

mod sum;

use andreas_api::slim::SlimTrainingJob;
use andreas_runtime::clock;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use jiff::tz::TimeZone;

pub use self::sum::{Sum, sums};

use crate::cluster::{Cluster, ConnectArgs, Namespaces, Selection, block_on};
use crate::output::{self, Column, Format, OutputArgs, energy, money};
use crate::when::{self, Since};

/// Acct: energy, money, GPU-hours and lateness of jobs, by namespace, user, profile or month.
///
/// A job counts whole in the period in which it ended; jobs that have not ended count in the present one: with their GPU-hours until now, and
/// with energy and cost of their ended attempts. Energy and cost are those of GPUs and of the jobs' share of their nodes, which -o wide shows
/// apart. Deleted jobs do not count (spec.ttlSecondsAfterFinished). The user is the account that ran `kubectl andreas submit` (annotation
/// andreas.dev/user). Lateness is its price in plans, not a payment. Needs the right to list TrainingJobs.
#[derive(Debug, Args)]
pub struct AcctArgs {
    /// What to add up by; may be repeated
    #[arg(long, value_name = "GROUP", value_enum, value_delimiter = ',', default_value = "namespace")]
    by: Vec<Group>,
    /// Only jobs that ended since then, and those that have not: a date, an instant, or a duration such as 30d
    #[arg(long, value_name = "WHEN", value_parser = when::since)]
    since: Option<Since>,
    /// Time zone of months and of the date of --since, a name of the IANA database
    #[arg(long, value_name = "ZONE", default_value = "UTC", value_parser = zone)]
    time_zone: TimeZone,
    #[command(flatten)]
    namespaces: Namespaces,
    #[command(flatten)]
    cluster: ConnectArgs,
    /// How to print
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value_t, help_heading = "Output")]
    output: AcctFormat,
    /// Leave the headings of tables out
    #[arg(long, help_heading = "Output")]
    no_headers: bool,
}

/// What jobs are added up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// Namespace of the job.
    Namespace,
    /// User that submitted it.
    User,
    /// Its TrainingProfile.
    Profile,
    /// Month in which it ended.
    Month,
    /// The job itself.
    Job,
}

/// How `acct` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum AcctFormat {
    /// A table.
    #[default]
    Table,
    /// A table with more columns.
    Wide,
    /// Comma-separated values, with units in the headings.
    Csv,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

fn zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name).map_err(|_| format!("{name:?} is no time zone of the IANA database"))
}

const COLUMNS: [Column<Sum>; 14] = [
    Column::text("GROUP", |sum| sum.group.join(", ")),
    Column::number("JOBS", |sum| sum.jobs.to_string()),
    Column::number("FAILED", |sum| sum.failed.to_string()),
    Column::number("GPU-HOURS", |sum| format!("{:.1}", sum.gpu_hours)),
    Column::number("ENERGY", |sum| energy(sum.all_joules())),
    Column::number("COST", |sum| format!("{} {}", money(sum.cost_micros()), sum.currency)),
    Column::number("LATE", |sum| if sum.late > 0 { sum.late.to_string() } else { String::new() }),
    Column::number("LATE BY", |sum| {
        if sum.late_seconds > 0 { output::duration(sum.late_seconds) } else { String::new() }
    }),
    Column::number("OPEN", |sum: &Sum| sum.open.to_string()).wide(),
    Column::number("WITH DEADLINE", |sum: &Sum| sum.with_deadline.to_string()).wide(),
    Column::number("LATENESS", |sum: &Sum| format!("{} {}", money(sum.lateness_micros), sum.currency)).wide(),
    Column::number("HOST ENERGY", |sum: &Sum| energy(sum.host_joules)).wide(),
    Column::number("HOST COST", |sum: &Sum| format!("{} {}", money(sum.host_micros), sum.currency)).wide(),
    Column::number("MEASURED", |sum: &Sum| output::percent(sum.measured_share())).wide(),
];

/// Runs the subcommand.
///
/// # Errors
/// When the jobs may not be listed.
pub fn run(args: &AcctArgs) -> Result<()> {
    let jobs = block_on(async {
        let cluster = Cluster::connect(&args.cluster).await?;
        let scope = cluster.scope(&args.namespaces);
        Ok(cluster.list::<SlimTrainingJob>(scope.namespace(), &Selection::default()).await?.items)
    })?;
    let now = clock::now();
    let since = args.since.as_ref().map(|since| since.instant(now, &args.time_zone));
    let sums = sums(&jobs, &args.by, since, &args.time_zone, now);
    let incomplete: u64 = sums.iter().map(|sum| sum.incomplete).sum();
    if incomplete > 0 {
        output::print_error(&format!(
            "note: jobs with more attempts than their status keeps: {incomplete}; their GPU-hours are a lower bound"
        ));
    }
    let running: u64 = sums.iter().map(|sum| sum.running).sum();
    if running > 0 {
        output::print_error(&format!(
            "note: attempts that run now: {running}; their GPU-hours count, and their energy and its cost at their end"
        ));
    }
    output::print(&text_of(args.output, args.no_headers, &args.by, &sums)?)
}

fn text_of(format: AcctFormat, no_headers: bool, by: &[Group], sums: &[Sum]) -> Result<String> {
    let list =
        |format| output::list(OutputArgs { format, no_headers }, &COLUMNS, sums, |sum| sum.group.join("/"));
    match format {
        AcctFormat::Table => list(Format::Table),
        AcctFormat::Wide => list(Format::Wide),
        AcctFormat::Json => list(Format::Json),
        AcctFormat::Yaml => list(Format::Yaml),
        AcctFormat::Csv => csv(by, sums, no_headers),
    }
}

/// Columns of CSV after those of the keys.
const NUMBERS: [(&str, fn(&Sum) -> String); 14] = [
    ("jobs", |sum| sum.jobs.to_string()),
    ("open", |sum| sum.open.to_string()),
    ("failed", |sum| sum.failed.to_string()),
    ("gpu_hours", |sum| format!("{:.4}", sum.gpu_hours)),
    ("energy_joules", |sum| sum.joules.to_string()),
    ("energy_measured_joules", |sum| sum.measured_joules.to_string()),
    ("host_energy_joules", |sum| sum.host_joules.to_string()),
    ("energy_cost", |sum| millionths(sum.energy_micros)),
    ("host_energy_cost", |sum| millionths(sum.host_micros)),
    ("lateness_penalty", |sum| millionths(sum.lateness_micros)),
    ("currency", |sum| sum.currency.clone()),
    ("with_deadline", |sum| sum.with_deadline.to_string()),
    ("late", |sum| sum.late.to_string()),
    ("late_seconds", |sum| sum.late_seconds.to_string()),
];

fn millionths(amount: i64) -> String {
    format!("{:.6}", amount as f64 / 1e6)
}

/// One row for each group: a column for each key, then plain numbers.
fn csv(by: &[Group], sums: &[Sum], no_headers: bool) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    if !no_headers {
        let keys = by.iter().filter_map(|group| Some(group.to_possible_value()?.get_name().to_owned()));
        writer.write_record(keys.chain(NUMBERS.map(|(name, _)| name.to_owned())))?;
    }
    for sum in sums {
        writer.write_record(sum.group.iter().cloned().chain(NUMBERS.map(|(_, number)| number(sum))))?;
    }
    String::from_utf8(writer.into_inner()?).context("as CSV")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::testing::{NOW, jobs};

    fn of(by: &[Group], since: Option<&str>) -> Vec<Sum> {
        let jobs: Vec<SlimTrainingJob> = serde_json::from_value(jobs()).unwrap();
        let since = since.map(|since| since.parse().unwrap());
        sums(&jobs, by, since, &TimeZone::UTC, NOW.parse().unwrap())
    }

    #[test]
    fn namespaces_are_added_up() {
        let sums = of(&[Group::Namespace], None);
        insta::assert_snapshot!(text_of(AcctFormat::Wide, false, &[], &sums).unwrap());
    }

    #[test]
    fn months_and_users_can_be_combined() {
        let by = [Group::Month, Group::User];
        insta::assert_snapshot!(text_of(AcctFormat::Csv, false, &by, &of(&by, None)).unwrap());
    }

    #[test]
    fn jobs_that_ended_before_do_not_count() {
        let sums = of(&[Group::Job], Some("2026-11-24T00:00:00Z"));
        let names: Vec<String> = sums.iter().map(|sum| sum.group.join("/")).collect();
        assert_eq!(names, ["team-a/bert-large", "team-a/waits", "team-b/broken"]);
        let json = text_of(AcctFormat::Json, false, &[Group::Job], &sums).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["items"][0]["joules"], 9_000_000);
        assert_eq!(json["items"][0]["hostJoules"], 3_600_000);
    }

    #[test]
    fn a_job_that_failed_has_missed_its_deadline() {
        let mut jobs = jobs();
        jobs[3]["status"]["deadline"] = "2026-11-24T18:00:00Z".into();
        let jobs: Vec<SlimTrainingJob> = serde_json::from_value(jobs).unwrap();
        let sums = sums(&jobs, &[Group::Job], None, &TimeZone::UTC, NOW.parse().unwrap());
        let broken = sums.iter().find(|sum| sum.group[0].ends_with("broken")).unwrap();
        assert_eq!((broken.with_deadline, broken.late, broken.late_seconds), (1, 1, 0));
    }

    #[test]
    fn a_running_attempt_counts_until_now_and_a_late_job_by_how_much() {
        let jobs = of(&[Group::Job], None);
        let sum = |name: &str| jobs.iter().find(|sum| sum.group[0].ends_with(name)).unwrap();
        // Four GPUs for two hours, then two for one.
        assert_eq!((sum("bert-large").gpu_hours, sum("bert-large").measured_joules), (10.0, 9_000_000));
        assert_eq!((sum("late").late, sum("late").late_seconds), (1, 3_600));
        assert_eq!((sum("broken").failed, sum("waits").open), (1, 1));
        // Its energy is not known yet.
        let running: Vec<&str> =
            jobs.iter().filter(|sum| sum.running > 0).map(|sum| sum.group[0].as_str()).collect();
        assert_eq!(running, ["team-a/bert-large"]);
        let profiles: Vec<String> =
            of(&[Group::Profile], None).iter().map(|sum| sum.group.join("")).collect();
        assert_eq!(profiles, ["bert", "broken", "gpt", "waits"]);
    }
}
