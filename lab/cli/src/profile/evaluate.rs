//! `profile evaluate`: how far off predictions are on a table, beside what one would do without them.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use andreas_evaluation::table::Sample;
use andreas_evaluation::{
    Baseline, Half, HoldOut, Outcome, Setting, evaluate, evaluate_baseline, floor, median, splits,
};
use anyhow::Result;
use clap::{Args, ValueEnum};

use super::csv::{Purpose, read};
use super::gpu_models;

/// Measure the predictor on a table: hold back what is known, ask for it, compare.
///
/// Jobs are held out whole. Several tables are asked one by one, none knowing the others, and then counted together. Prints
/// Markdown: median (and mean) absolute errors, how often the truth lay in the interval of 90 % (the jobs' mean and its standard
/// error: rows of one job are no independent tries), and the same questions put to simpler methods.
#[derive(Debug, Args)]
pub struct EvaluateArgs {
    /// Measurements (CSV, see `profile predict --help`)
    #[arg(long, value_name = "CSV", required = true, num_args = 1..)]
    data: Vec<PathBuf>,
    /// Questions to put; all when absent
    #[arg(long, value_enum, value_delimiter = ',')]
    setting: Vec<Name>,
    /// Hold out all jobs of the same model too
    #[arg(long)]
    without_model: bool,
    /// Ask about half of the models only, by the hash of their names; default: all
    #[arg(long, value_enum)]
    half: Option<WhichHalf>,
    /// Only rows on at most N nodes
    #[arg(long, value_name = "N")]
    max_nodes: Option<u32>,
    /// A line for every job
    #[arg(long)]
    by_job: bool,
    /// How noisy the table is, in place of questions: what no prediction can be below
    #[arg(long)]
    floor: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum WhichHalf {
    /// The half to choose variants on: rows of the other half are not read
    Choose,
    /// The half to report: the other half's rows are known, but not asked
    Report,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Name {
    /// Other settings of the job are known (a fifth left out at a time, four times over)
    Known,
    /// One measurement of the job
    First1,
    /// Two
    First2,
    /// Four: three batches on the fewest GPUs, one on more
    First4,
    /// Four on one node, none across nodes
    Across0,
    /// Four on one node, one across nodes
    Across1,
    /// Another GPU type, one measurement there
    NewType1,
    /// Another GPU type, none there
    NewType0,
    /// Nothing of the job
    Nothing,
}

/// Repetitions with other folds. Which rows share a fold changes the error of known settings by a tenth.
const SHUFFLES: u32 = 4;

impl Name {
    const ALL: [Self; 9] = [
        Self::Known,
        Self::First1,
        Self::First2,
        Self::First4,
        Self::Across0,
        Self::Across1,
        Self::NewType1,
        Self::NewType0,
        Self::Nothing,
    ];

    fn setting(self) -> (Setting, &'static str) {
        match self {
            Self::Known => (Setting::Known(SHUFFLES), "known settings, 5-fold"),
            Self::First1 => (Setting::First(1), "first measurement"),
            Self::First2 => (Setting::First(2), "first two"),
            Self::First4 => (Setting::First(4), "first four"),
            Self::Across0 => (Setting::Across(0), "across nodes, none there"),
            Self::Across1 => (Setting::Across(1), "across nodes, one there"),
            Self::NewType1 => (Setting::NewType(1), "new GPU type, one there"),
            Self::NewType0 => (Setting::NewType(0), "new GPU type, none there"),
            Self::Nothing => (Setting::Nothing, "nothing of the job"),
        }
    }
}

fn percent(x: f64) -> String {
    if x.is_finite() { format!("{:.1}", 100.0 * x) } else { "-".to_owned() }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Runs the subcommand.
pub fn run(args: &EvaluateArgs) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut together = Name::ALL.map(|_| Answers::default());
    for file in &args.data {
        let mut samples = read(file, Purpose::Measurements)?.samples;
        samples.retain(|s| args.max_nodes.is_none_or(|most| s.nodes <= most));
        let gpus = gpu_models(&samples);
        let half = args.half.map(|half| match half {
            WhichHalf::Choose => Half::Choose,
            WhichHalf::Report => Half::Report,
        });
        let hold_out = if args.without_model { HoldOut::Model } else { HoldOut::Job };
        let name = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        writeln!(out, "\n### {name}: {} rows\n", samples.len())?;
        if args.floor {
            floors(&mut out, &samples, args.by_job)?;
            continue;
        }
        header(&mut out)?;
        for (wanted, together) in Name::ALL.into_iter().zip(&mut together) {
            if !args.setting.is_empty() && !args.setting.contains(&wanted) {
                continue;
            }
            let (setting, label) = wanted.setting();
            let splits = splits(&samples, setting, hold_out, half);
            if splits.is_empty() {
                continue;
            }
            let asked = Answers {
                outcome: evaluate(&splits, &gpus),
                answers: Baseline::ALL.map(|b| evaluate_baseline(&splits, b)),
            };
            writeln!(out, "{}", asked.line(label))?;
            if args.by_job {
                for (job, asked) in asked.by_job() {
                    writeln!(out, "{}", asked.line(&format!("- {job}")))?;
                }
            }
            // By its place, not its name: tables of two folders may be called the same.
            together.join(&file.to_string_lossy(), asked);
        }
    }
    if args.data.len() > 1 && !args.floor {
        let jobs: usize = together.iter().map(|asked| asked.outcome.jobs()).max().unwrap_or(0);
        writeln!(out, "\n### all {} tables: at most {jobs} jobs\n", args.data.len())?;
        header(&mut out)?;
        for (wanted, asked) in Name::ALL.into_iter().zip(&together) {
            let jobs = asked.outcome.jobs();
            if jobs > 0 {
                writeln!(out, "{}", asked.line(&format!("{}, {jobs} jobs", wanted.setting().1)))?;
            }
        }
    }
    Ok(())
}

/// What the predictor and the baselines answered to the same questions.
#[derive(Default)]
struct Answers {
    outcome: Outcome,
    answers: [Outcome; Baseline::ALL.len()],
}

impl Answers {
    fn join(&mut self, table: &str, other: Self) {
        self.outcome.join(table, other.outcome);
        for (all, one) in self.answers.iter_mut().zip(other.answers) {
            all.join(table, one);
        }
    }

    /// A row of the table.
    fn line(&self, label: &str) -> String {
        let outcome = &self.outcome;
        let errors = outcome.epoch_errors();
        let watts = outcome.power_errors();
        let covered = |power: bool, any: bool| match (any, outcome.coverage_error(power)) {
            (false, _) => "-".to_owned(),
            (true, error) if error.is_finite() => {
                format!("{} ± {}", percent(outcome.coverage(power)), percent(error))
            }
            (true, _) => percent(outcome.coverage(power)),
        };
        let mut cells = vec![
            label.to_owned(),
            outcome.answers.len().to_string(),
            percent(median(errors.clone())),
            percent(mean(&errors)),
            covered(false, !errors.is_empty()),
            percent(median(watts.clone())),
            covered(true, !watts.is_empty()),
            percent(median(outcome.energy_errors())),
        ];
        for one in &self.answers {
            let errors: Vec<f64> = one.epoch_errors().into_iter().filter(|e| e.is_finite()).collect();
            cells.push(percent(median(errors)));
        }
        format!("| {} |", cells.join(" | "))
    }

    fn by_job(&self) -> impl Iterator<Item = (&str, Self)> {
        let answers = self.answers.each_ref().map(Outcome::by_job);
        self.outcome.by_job().into_iter().map(move |(job, outcome)| {
            (
                job,
                Self {
                    outcome,
                    answers: answers.each_ref().map(|by_job| by_job.get(job).cloned().unwrap_or_default()),
                },
            )
        })
    }
}

fn header(out: &mut impl Write) -> Result<()> {
    writeln!(
        out,
        "| what is known | asked | time, median | mean | covered | watts | covered | energy | {} |",
        baselines()
    )?;
    Ok(writeln!(out, "|---|---:|---:|---:|---:|---:|---:|---:|{}", "---:|".repeat(Baseline::ALL.len()))?)
}

fn baselines() -> String {
    Baseline::ALL.map(Baseline::as_str).join(" | ")
}

/// The noise of a table: of all of it, and of each model.
fn floors(out: &mut impl Write, samples: &[Sample], by_model: bool) -> Result<()> {
    writeln!(out, "| rows of | time | energy |\n|---|---:|---:|")?;
    let mut line = |name: &str, rows: &[Sample]| {
        let floors = [floor(rows, |s| s.epoch_s), floor(rows, |s| Some(s.epoch_s? * s.power_w?))];
        let cell = |(value, n): (f64, usize)| {
            if n > 0 { format!("{} ({n})", percent(value)) } else { "-".to_owned() }
        };
        writeln!(out, "| {name} | {} |", floors.map(cell).join(" | "))
    };
    line("all", samples)?;
    let models: BTreeSet<&str> = samples.iter().map(Sample::model).collect();
    for name in models.into_iter().filter(|_| by_model) {
        let rows: Vec<Sample> = samples.iter().filter(|s| s.model() == name).cloned().collect();
        line(&format!("- {name}"), &rows)?;
    }
    Ok(())
}
