//! `kubectl-andreas queue`: the jobs of a namespace and when they are expected to start and end.

use andreas_api::query::{DEFAULT_QUEUE, MAX_QUEUE, Queue, QueuedJob, path};
use anyhow::Result;
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::timeline::{Timeline, records};
use super::transport::Operator;
use super::{AskArgs, svg, text};
use crate::cluster::block_on;
use crate::output::{self, Column, Format, OutputArgs, duration, short_gpu_type};

/// Queue: the jobs of a namespace, when they are expected to start and end, and why they wait.
///
/// The position counts the waiting jobs of the whole cluster by expected start. Jobs of other namespaces are only counted. Needs the
/// right to list TrainingJobs in the namespace.
#[derive(Debug, Args)]
pub struct QueueArgs {
    #[command(flatten)]
    ask: AskArgs,
    /// How to print; svg: the jobs over time as a picture
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value = "table", help_heading = "Output")]
    output: QueueFormat,
    /// Leave the headings of tables out
    #[arg(long, help_heading = "Output")]
    no_headers: bool,
    /// Maximum jobs in the answer.
    #[arg(long, default_value_t = DEFAULT_QUEUE as u32, value_parser = clap::value_parser!(u32).range(1..=MAX_QUEUE as i64), value_name = "N", help_heading = "Output")]
    limit: u32,
}

/// How `queue` prints: as other lists, or as a picture.
#[derive(Clone, Copy, Debug)]
struct QueueFormat(Option<Format>);

impl ValueEnum for QueueFormat {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [QueueFormat; 6] = [
            QueueFormat(Some(Format::Table)),
            QueueFormat(Some(Format::Wide)),
            QueueFormat(Some(Format::Json)),
            QueueFormat(Some(Format::Yaml)),
            QueueFormat(Some(Format::Name)),
            QueueFormat(None),
        ];
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let picture = || Some(PossibleValue::new("svg").help("A picture"));
        self.0.map_or_else(picture, |format| format.to_possible_value())
    }
}

/// A row, with the instant that times count from.
#[derive(serde::Serialize)]
struct Row {
    #[serde(flatten)]
    job: QueuedJob,
    #[serde(skip)]
    now: Timestamp,
}

impl Row {
    fn expected(&self, show: impl Fn(&andreas_api::query::Expected) -> String) -> String {
        self.job.expected.as_ref().map(show).unwrap_or_default()
    }
}

const COLUMNS: [Column<Row>; 13] = [
    Column::text("NAME", |row| row.job.name.clone()),
    Column::text("PHASE", |row| row.job.phase.as_str().to_owned()),
    Column::number("POS", |row| row.job.position.map(|n| n.to_string()).unwrap_or_default()),
    Column::text("GPUS", |row| row.job.gpus.clone()),
    Column::text("START", |row| row.expected(|e| text::interval(&e.start, row.now))),
    Column::text("END", |row| row.expected(|e| text::interval(&e.finish, row.now))),
    Column::number("ON TIME", |row| {
        row.expected(|e| e.on_time_percent.map(|p| format!("{p} %")).unwrap_or_default())
    }),
    Column::text("REASON", |row| row.job.reason.clone().unwrap_or_default()),
    Column::text("AHEAD", |row: &Row| row.job.ahead.as_ref().map(text::jobs).unwrap_or_default()).wide(),
    Column::text("TYPE", |row: &Row| row.expected(|e| short_gpu_type(&e.gpu_type).to_owned())).wide(),
    Column::number("WEIGHT", |row: &Row| row.job.weight.to_string()).wide(),
    Column::text("DEADLINE", |row: &Row| {
        row.job.deadline.as_ref().map(|at| text::from_now(at, row.now)).unwrap_or_default()
    })
    .wide(),
    Column::text("AGE", |row: &Row| duration(row.now.as_second() - row.job.created.0.as_second())).wide(),
];

/// Runs the subcommand.
///
/// # Errors
/// When the cluster or the operator refuses.
pub fn run(args: &QueueArgs) -> Result<()> {
    let format = args.output.0;
    let (queue, jobs): (Queue, _) = block_on(async {
        let operator = Operator::connect(&args.ask).await?;
        let queue = operator.get(&path::queue_of(&operator.namespace, args.limit as usize)).await?;
        // They know the attempts that ended.
        let jobs = if format.is_none() { operator.jobs().await? } else { Vec::new() };
        Ok((queue, jobs))
    })?;
    if queue.jobs.is_empty() {
        output::print_error(&format!(
            "no job of namespace {} is open; {} wait in the whole cluster",
            queue.namespace, queue.waiting
        ));
    }
    let more = (queue.open as usize).saturating_sub(queue.jobs.len());
    if more > 0 {
        output::print_error(&format!("{more} more open jobs are not shown: use --limit"));
    }
    let now = Timestamp::now();
    let Some(format) = format else {
        return output::print(&svg::svg(&Timeline::new(queue, &records(jobs), now), &TimeZone::system()));
    };
    let rows: Vec<Row> = queue.jobs.into_iter().map(|job| Row { job, now }).collect();
    output::print(&output::list(
        OutputArgs { format, no_headers: args.no_headers },
        &COLUMNS,
        &rows,
        |row| format!("trainingjob/{}", row.job.name),
    )?)
}
