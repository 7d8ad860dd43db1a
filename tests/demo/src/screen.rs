//! The live table: what is shown of the jobs and of the cluster's power. The lines are made without I/O.

use std::collections::BTreeMap;

use andreas_api::phase::Phase;
use andreas_api::slim::SlimTrainingJob;
use console::{Style, Term, measure_text_width, truncate_str};
use jiff::Timestamp;
use kube::ResourceExt as _;

use andreas_e2e::seen::ClusterHistory;

use crate::plain::pods_of;
use crate::power::Reading;

/// Width of the bar that shows power against its budget.
const BAR: usize = 40;

/// A run's jobs as last seen, by name; plain Jobs in the form of TrainingJobs.
pub type Jobs = BTreeMap<String, SlimTrainingJob>;

/// What the table's head says.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Which of the runs it is.
    pub title: &'a str,
    /// Seconds since the first apply.
    pub at: f64,
    /// About how long such a run takes, s.
    pub usual: f64,
    /// Power that counts against the budget, W.
    pub watts: f64,
    /// The budget, W.
    pub budget: f64,
}

/// Shows the table in place on a terminal.
pub struct Screen {
    term: Term,
    drawn: usize,
}

impl Screen {
    /// None where standard output is no terminal.
    pub fn open() -> Option<Self> {
        let term = Term::stdout();
        term.is_term().then_some(Self { term, drawn: 0 })
    }

    /// Draws over what was drawn before. A terminal that is gone does not end the run.
    pub fn draw(&mut self, jobs: &Jobs, seen: &ClusterHistory, reading: &Reading, head: Head<'_>) {
        let (rows, columns) = self.term.size();
        let mut lines = lines(jobs, seen, reading, head, Timestamp::now());
        // The last rows are those of jobs that have ended: they are left out first.
        lines.truncate(usize::from(rows).saturating_sub(1));
        let _ = self.term.clear_last_lines(self.drawn);
        for line in &lines {
            let _ = self.term.write_line(&truncate_str(line, usize::from(columns), "…"));
        }
        self.drawn = lines.len();
    }
}

/// The table as lines: a head, then jobs that train, wait, and have ended.
pub fn lines(
    jobs: &Jobs,
    seen: &ClusterHistory,
    reading: &Reading,
    head: Head<'_>,
    now: Timestamp,
) -> Vec<String> {
    let used: i64 = seen.gpus_in_use().values().sum();
    let all: i64 = seen.node_gpus.values().sum();
    let ended = jobs.values().filter(|job| phase(job).is_terminal()).count();
    let share = (head.watts / head.budget).clamp(0.0, 1.0);
    let full = (share * BAR as f64).round() as usize;
    let mut lines = vec![
        format!(
            "{}: {:.0} s, usually {:.0} s   {ended} of {} jobs done   {used} of {all} GPUs held, {} at rest",
            head.title,
            head.at,
            head.usual,
            jobs.len(),
            reading.at_rest
        ),
        format!(
            "power  [{}{}] {:.1} of {:.1} kW budgeted   GPUs draw {:.1} kW",
            "█".repeat(full),
            "·".repeat(BAR - full),
            head.watts / 1000.0,
            head.budget / 1000.0,
            reading.watts / 1000.0
        ),
        row(["JOB", "PHASE", "GPUS", "NODES", "PROGRESS", "ETA", "DEADLINE", "WATTS"].map(str::to_owned)),
    ];
    let mut jobs: Vec<(&String, &SlimTrainingJob)> = jobs.iter().collect();
    jobs.sort_by_key(|(name, job)| (rank(phase(job)), *name));
    for (name, job) in jobs {
        let watts: f64 =
            pods_of(seen, job).iter().filter_map(|pod| reading.of_pods.get(&pod.pod.uid()?)).sum();
        let line = row(cells(name, job, watts, now));
        lines.push(match phase(job) {
            Phase::Running => Style::new().green().apply_to(line).to_string(),
            Phase::Succeeded => Style::new().dim().apply_to(line).to_string(),
            Phase::Failed => Style::new().red().apply_to(line).to_string(),
            _ => line,
        });
    }
    lines
}

fn phase(job: &SlimTrainingJob) -> Phase {
    job.status.as_ref().map(|status| status.phase).unwrap_or_default()
}

fn rank(phase: Phase) -> u8 {
    match phase {
        Phase::Running => 0,
        Phase::Starting | Phase::Stopping => 1,
        Phase::Succeeded | Phase::Failed => 3,
        _ => 2,
    }
}

fn cells(name: &str, job: &SlimTrainingJob, watts: f64, now: Timestamp) -> [String; 8] {
    let status = job.status.clone().unwrap_or_default();
    let allocation = status.allocation.as_ref();
    let relative = |time: &Timestamp| {
        let seconds = time.duration_since(now).as_secs();
        if seconds < 0 { format!("{}s ago", -seconds) } else { format!("in {seconds}s") }
    };
    let terminal = status.phase.is_terminal();
    let finish = status.prediction.as_ref().and_then(|one| one.finish_time.as_ref());
    let eta = match (&status.completion_time, finish) {
        (Some(done), _) => relative(&done.0),
        (None, Some(finish)) if !terminal => relative(&finish.0),
        _ => String::new(),
    };
    [
        name.to_owned(),
        status.phase.as_str().to_owned(),
        allocation.map(|one| format!("{} {}", one.gpus, short(&one.gpu_type))).unwrap_or_default(),
        allocation.map(|one| one.nodes.join(", ")).or(status.reason).unwrap_or_default(),
        status.display.progress.clone().unwrap_or_default(),
        eta,
        status.deadline.as_ref().map(|time| relative(&time.0)).unwrap_or_default(),
        if watts > 0.0 { format!("{watts:.0}") } else { String::new() },
    ]
}

/// `NVIDIA-A100-SXM4-80GB` as `A100`.
fn short(product: &str) -> &str {
    product.split('-').find(|part| !["NVIDIA", "Tesla"].contains(part)).unwrap_or(product)
}

fn row(cells: [String; 8]) -> String {
    const WIDTHS: [usize; 8] = [24, 10, 8, 22, 9, 9, 9, 6];
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(WIDTHS) {
        let cell = truncate_str(cell, width, "…");
        line.push_str(&cell);
        line.push_str(&" ".repeat(width.saturating_sub(measure_text_width(&cell)) + 1));
    }
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_head_says_which_run_it_is_how_far_and_how_long_it_takes() {
        let job = |phase: &str| {
            let job = json!({"metadata": {"name": "a"}, "spec": {"template": {"spec": {"containers": []}}}, "status": {"phase": phase}});
            serde_json::from_value::<SlimTrainingJob>(job).unwrap()
        };
        let jobs = Jobs::from([("a".into(), job("Succeeded")), ("b".into(), job("Running"))]);
        let head =
            Head { title: "run 1 of 2: plain Kubernetes", at: 34.4, usual: 150.0, watts: 8e3, budget: 16e3 };
        let lines =
            lines(&jobs, &ClusterHistory::default(), &Reading::default(), head, Timestamp::UNIX_EPOCH);
        assert!(
            lines[0].starts_with("run 1 of 2: plain Kubernetes: 34 s, usually 150 s   1 of 2 jobs done"),
            "{lines:?}"
        );
        assert!(lines[1].contains("8.0 of 16.0 kW"), "{lines:?}");
    }
}
