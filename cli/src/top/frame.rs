//! The screen as lines: a head with GPUs and power, then jobs that run, wait, and have ended.

use andreas_api::phase::Phase;
use andreas_api::slim::SlimTrainingJob;
use andreas_api::training_job::TrainingJobStatus;
use console::Style;
use jiff::Timestamp;

use crate::budget::Budget;
use crate::inventory::NodeView;
use crate::output::{self, Column, ago_or_in, bar, power, short_gpu_type};

/// Width of the bar that shows power against its budget.
const BAR: usize = 40;
/// Ended jobs that are shown.
const ENDED: usize = 10;

/// What is shown.
pub struct Frame {
    /// Jobs of the namespaces that are asked for.
    pub jobs: Vec<SlimTrainingJob>,
    /// Nodes and budget; none where they may not be read.
    pub nodes: Option<(Vec<NodeView>, Budget)>,
    /// When it was read.
    pub now: Timestamp,
    /// Jobs of all namespaces.
    pub all: bool,
}

/// A job as it is shown.
struct Row {
    cells: [String; 9],
    phase: Phase,
}

const COLUMNS: [Column<Row>; 9] = [
    Column::text("JOB", |row| row.cells[0].clone()),
    Column::text("PHASE", |row| row.cells[1].clone()),
    Column::text("GPUS", |row| row.cells[2].clone()),
    Column::text("WHERE OR WHY", |row| row.cells[3].clone()),
    Column::number("DONE", |row| row.cells[4].clone()),
    Column::text("END", |row| row.cells[5].clone()),
    Column::text("DEADLINE", |row| row.cells[6].clone()),
    Column::number("ON TIME", |row| row.cells[7].clone()),
    Column::number("POWER", |row| row.cells[8].clone()),
];

impl Frame {
    /// The lines; colours are those that the terminal bears.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.head();
        let rows = self.rows();
        let table = output::table(&COLUMNS, &rows, false, true);
        for (number, line) in table.lines().enumerate() {
            let phase = number.checked_sub(1).and_then(|row| rows.get(row)).map(|row| row.phase);
            lines.push(match phase {
                Some(Phase::Running) => Style::new().green().apply_to(line).to_string(),
                Some(Phase::Succeeded) => Style::new().dim().apply_to(line).to_string(),
                Some(Phase::Failed) => Style::new().red().apply_to(line).to_string(),
                _ => line.to_owned(),
            });
        }
        lines
    }

    fn head(&self) -> Vec<String> {
        let count = |wanted: &[Phase]| self.jobs.iter().filter(|job| wanted.contains(&phase(job))).count();
        let mut lines = vec![format!(
            "jobs   {} run, {} start or stop, {} wait, {} suspended, {} ended",
            count(&[Phase::Running]),
            count(&[Phase::Starting, Phase::Stopping]),
            count(&[Phase::Pending]),
            count(&[Phase::Suspended]),
            count(&[Phase::Succeeded, Phase::Failed])
        )];
        let Some((views, budget)) = &self.nodes else { return lines };
        let sum = |of: fn(&NodeView) -> u64| views.iter().map(of).sum::<u64>();
        lines.push(format!(
            "GPUs   {} of {} held, {} free, {} resting, {} unhealthy",
            sum(|view| view.held),
            sum(|view| view.gpus),
            sum(|view| view.free),
            sum(|view| view.resting),
            sum(|view| view.unhealthy)
        ));
        let drawn = power(budget.drawn_watts as f64);
        lines.push(match budget.watts {
            Some(watts) => format!(
                "power  {} {drawn} of {}",
                bar(budget.drawn_watts as f64 / watts.max(1) as f64, BAR),
                power(watts as f64)
            ),
            None => format!("power  {drawn}, no budget"),
        });
        lines
    }

    fn rows(&self) -> Vec<Row> {
        let mut jobs: Vec<&SlimTrainingJob> = self.jobs.iter().collect();
        jobs.sort_by_key(|job| {
            let ended = status(job).completion_time.map_or(0, |at| at.0.as_second());
            let created = job.metadata.creation_timestamp.as_ref().map_or(0, |at| at.0.as_second());
            (rank(phase(job)), -ended, created, job.metadata.name.clone())
        });
        let open = jobs.iter().filter(|job| !phase(job).is_terminal()).count();
        jobs.truncate(open + ENDED);
        jobs.into_iter().map(|job| self.row(job)).collect()
    }

    fn row(&self, job: &SlimTrainingJob) -> Row {
        let status = status(job);
        let from_now = |at: &Timestamp| ago_or_in(at.as_second() - self.now.as_second());
        let finish = status.prediction.as_ref().and_then(|one| one.finish_time.as_ref());
        let end = status.completion_time.as_ref().or(finish.filter(|_| !status.phase.is_terminal()));
        let allocation = status.allocation.as_ref().filter(|_| !status.phase.is_terminal());
        let (namespace, name) = (
            job.metadata.namespace.clone().unwrap_or_default(),
            job.metadata.name.clone().unwrap_or_default(),
        );
        let full = format!("{namespace}/{name}");
        let place = allocation.map(|one| one.placement.clone());
        Row {
            phase: status.phase,
            cells: [
                if self.all { full.clone() } else { name },
                status.phase.as_str().to_owned(),
                allocation
                    .map(|one| format!("{} {}", one.gpus, short_gpu_type(&one.gpu_type)))
                    .unwrap_or_default(),
                place.or_else(|| status.reason.clone()).unwrap_or_default(),
                status.progress.as_ref().map(|one| one.text.clone()).unwrap_or_default(),
                end.map(|at| from_now(&at.0)).unwrap_or_default(),
                status.deadline.as_ref().map(|at| from_now(&at.0)).unwrap_or_default(),
                status.on_time.clone().unwrap_or_default(),
                allocation.map(|one| self.draw(&full, one.watts)).unwrap_or_default(),
            ],
        }
    }

    /// Measured draw of a job's GPUs, else the planned one of all of it.
    fn draw(&self, job: &str, planned: i32) -> String {
        let holders = self.nodes.iter().flat_map(|(views, _)| views).flat_map(|view| &view.holders);
        let measured: i64 =
            holders.filter(|holder| holder.job.as_deref() == Some(job)).map(|holder| holder.watts).sum();
        match (measured, planned) {
            (0, 0) => String::new(),
            (0, planned) => format!("~{}", power(f64::from(planned))),
            (watts, _) => power(watts as f64),
        }
    }
}

fn status(job: &SlimTrainingJob) -> TrainingJobStatus {
    job.status.clone().unwrap_or_default()
}

fn phase(job: &SlimTrainingJob) -> Phase {
    job.status.as_ref().map(|status| status.phase).unwrap_or_default()
}

fn rank(phase: Phase) -> u8 {
    match phase {
        Phase::Running => 0,
        Phase::Starting | Phase::Stopping => 1,
        Phase::Pending => 2,
        Phase::Suspended => 3,
        Phase::Succeeded | Phase::Failed => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::testing::{NOW, objects};

    #[test]
    fn jobs_gpus_and_power_are_on_one_screen() {
        console::set_colors_enabled(false);
        let (objects, now) = (objects(), NOW.parse().unwrap());
        let views = objects.views();
        let budget = Budget::new(&objects, &views, now);
        let jobs = objects.jobs.unwrap();
        let frame = Frame { jobs: jobs.clone(), nodes: Some((views, budget)), now, all: true };
        insta::assert_snapshot!(frame.lines().join("\n"));
        let tenant = Frame { jobs, nodes: None, now, all: false };
        let lines = tenant.lines();
        assert!(lines[1].starts_with("JOB") && lines[2].contains("~1400 W"), "{lines:?}");
    }
}
