//! What runs came to, and two of them side by side. Every figure of a run has one source whatever planned it: instants from
//! its objects, energy from the boards' counters, prices from the product's policy.

use andreas_api::slim::SlimTrainingJob;
use andreas_api::{EnergyPolicySpec, Phase, Reason};
use andreas_cluster::policy::rules;
use andreas_e2e::workload::TimeScale;
use andreas_model::{Joules, Seconds};
use andreas_planner::MethodName;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::power::Reading;

/// Stops for the budget count as `power_stops` while the draw is below this part of it.
const WELL_BELOW_BUDGET: f64 = 0.9;

/// Figures of a run, measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct MeasuredRun {
    /// `plain` for Kubernetes without ANDREAS; else the operator's planning method.
    pub method: String,
    /// Whether pods ran: always.
    pub measured: bool,
    /// Jobs applied.
    pub jobs: usize,
    /// Those that succeeded.
    pub finished: usize,
    /// Those done after their deadline, or not done.
    pub late: usize,
    /// Sum of weight x seconds late.
    pub weighted_tardiness: f64,
    /// Mean time from creation to completion, s.
    pub mean_turnaround_s: f64,
    /// Energy of GPUs while jobs held them, kWh.
    pub energy_kwh: f64,
    /// Energy of nodes beside their GPUs while they had a job, kWh.
    pub host_kwh: f64,
    /// Price of both energies, lateness and turnaround, in the policy's currency.
    pub cost: f64,
    /// Times that a job was stopped and went on later.
    pub restarts: i64,
    /// Stops by the plan, but for the budget, of attempts that had run for less than a restart takes.
    pub young_stops: usize,
    /// Stops for the budget while GPUs and nodes drew less than nine tenths of it.
    pub power_stops: usize,
    /// Instants seen at which the power that counts against the budget was above it.
    pub budget_violations: u64,
    /// Time in which GPUs and nodes drew more than the product's budget, s.
    pub seconds_above_budget: f64,
    /// Pods of jobs bound at all.
    pub pods_bound: usize,
    /// Pods of jobs bound by our extender.
    pub pods_bound_by_extender: usize,
}

impl MeasuredRun {
    /// The figures that follow from the objects and the meters; what must be watched or audited is left at zero. `policy` is the
    /// product's, also where nothing knew it.
    pub fn of<'a>(
        jobs: impl IntoIterator<Item = &'a SlimTrainingJob>,
        reading: &Reading,
        policy: &EnergyPolicySpec,
    ) -> Self {
        let mut run = Self {
            measured: true,
            energy_kwh: reading.gpu_kwh(),
            host_kwh: reading.busy_host_joules / 3.6e6,
            seconds_above_budget: reading.seconds_above_budget,
            ..Self::default()
        };
        let joules = Joules((run.energy_kwh + run.host_kwh) * 3.6e6);
        run.cost = (rules::price_at(policy, Timestamp::now().as_second()) * joules).0;
        let mut turnaround = 0.0;
        for job in jobs {
            run.jobs += 1;
            run.count_stops(job, reading, policy);
            let Some(end) = end(job) else {
                run.late += 1;
                continue;
            };
            run.finished += 1;
            turnaround += end.turnaround.0;
            if let Some(tardiness) = end.late.map(|late| late.0).filter(|late| *late > 0.0) {
                run.late += 1;
                run.weighted_tardiness += tardiness * f64::from(job.spec.weight);
            }
            let charges = rules::lateness(policy).charges(end.late, end.turnaround);
            run.cost += (rules::late_rate(policy, job.spec.weight) * charges.sum()).0;
        }
        if run.finished > 0 {
            run.mean_turnaround_s = turnaround / run.finished as f64;
        }
        run
    }

    fn count_stops(&mut self, job: &SlimTrainingJob, reading: &Reading, policy: &EnergyPolicySpec) {
        let Some(status) = &job.status else { return };
        self.restarts += i64::from(status.restarts);
        for attempt in &status.history {
            let Some(stopped) = &attempt.planned_stop else { continue };
            if [Reason::PowerBudget, Reason::BudgetInfeasible].iter().any(|r| r.as_str() == attempt.reason) {
                let budget = policy.power_budget.watts.map_or(f64::INFINITY, |watts| watts as f64);
                let draw = reading.draw_at(stopped.0);
                self.power_stops += usize::from(draw.is_some_and(|draw| draw < WELL_BELOW_BUDGET * budget));
            } else {
                let ran = attempt.started.as_ref().map_or(0.0, |started| seconds(stopped.0, started.0));
                self.young_stops += usize::from(ran < rules::restart_time(policy).0);
            }
        }
    }
}

/// How a job that succeeded ended.
struct End {
    turnaround: Seconds,
    /// From the deadline to the end; negative where it was in time.
    late: Option<Seconds>,
}

fn end(job: &SlimTrainingJob) -> Option<End> {
    let status = job.status.as_ref().filter(|status| status.phase == Phase::Succeeded)?;
    let (completed, created) =
        (status.completion_time.as_ref()?.0, job.metadata.creation_timestamp.as_ref()?.0);
    let late = status.deadline.as_ref().map(|deadline| Seconds(seconds(completed, deadline.0)));
    Some(End { turnaround: Seconds(seconds(completed, created)), late })
}

/// Figures of the product's run, and of all runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Summary {
    /// What every run has.
    #[serde(flatten)]
    pub run: MeasuredRun,
    /// Nodes with a kubelet and containers; 0: the nodes were pretend ones.
    pub real_nodes: usize,
    /// What jobs are billed for of the hosts' energy, kWh: each for the GPUs that it held, while all its members ran.
    #[serde(default)]
    pub billed_host_kwh: f64,
    /// GPU hours in low power, by the nodes' drivers.
    pub gpu_hours_at_rest: f64,
    /// What rest saved by the node agents' own estimate, J. Nothing lowers the draw of a GPU without a context.
    pub joules_saved_by_rest: f64,
    /// From the first apply to the last end, s.
    pub wall_s: f64,
    /// All runs in their order: plain Kubernetes first, where it ran, then this one.
    pub runs: Vec<MeasuredRun>,
}

impl Summary {
    /// What is wrong if jobs are billed for more than their hosts drew. Instants in objects are whole seconds: a tenth may be that.
    pub fn billed_too_much(&self) -> Option<String> {
        let (billed, drawn) = (self.billed_host_kwh, self.run.host_kwh);
        (billed > 1.1 * drawn)
            .then(|| format!("jobs are billed for {billed:.4} kWh of hosts that drew {drawn:.4}"))
    }

    /// What only the product's run has, as lines for people.
    pub fn lines(&self) -> Vec<String> {
        let scale = TimeScale::DEMO.0;
        vec![
            format!("{:<WIDTH$} {}", "real nodes", self.real_nodes),
            format!("{:<WIDTH$} {:.1} s", "wall time", self.wall_s),
            format!(
                "{:<WIDTH$} {} kWh, {} of it billed to jobs",
                "energy of busy hosts",
                figure(self.run.host_kwh * scale),
                figure(self.billed_host_kwh * scale)
            ),
            format!(
                "{:<WIDTH$} {} GPU hours, {} kWh saved by the agents' estimate",
                "at rest",
                figure(self.gpu_hours_at_rest * scale),
                figure(self.joules_saved_by_rest / 3.6e6 * scale)
            ),
        ]
    }

    /// The runs side by side, with the ratio of the last to the first where there are two.
    pub fn comparison(&self) -> Vec<String> {
        let cells = |name: &str, cells: &[String]| {
            let cells: String = cells.iter().map(|cell| format!(" {cell:>18}")).collect();
            format!("{name:<WIDTH$}{cells}")
        };
        let mut heads: Vec<String> = self.runs.iter().map(|run| name(&run.method)).collect();
        if self.runs.len() > 1 {
            heads.push("ratio".into());
        }
        let mut lines = vec![cells("measured", &heads)];
        for (name, value) in ROWS {
            let values: Vec<f64> = self.runs.iter().map(value).collect();
            let mut row: Vec<String> = values.iter().map(|value| figure(*value)).collect();
            if let [first, .., last] = values[..] {
                row.push(if first > 0.0 { figure(last / first) } else { "-".into() });
            }
            lines.push(cells(name, &row));
        }
        lines.push(String::new());
        lines.push(format!(
            "Times are those of the runs. Energy and money are {} times those of the runs: as in the trace's own time.",
            TimeScale::DEMO.0
        ));
        lines
    }
}

/// Width of the rows' names.
const WIDTH: usize = 38;
/// Rows of the comparison, with energy and money at the trace's scale of time.
type Row = (&'static str, fn(&MeasuredRun) -> f64);
const ROWS: [Row; 14] = [
    ("jobs", |run| run.jobs as f64),
    ("finished", |run| run.finished as f64),
    ("late", |run| run.late as f64),
    ("weighted tardiness, s", |run| run.weighted_tardiness),
    ("mean turnaround, s", |run| run.mean_turnaround_s),
    ("energy of GPUs, kWh", |run| run.energy_kwh * TimeScale::DEMO.0),
    ("energy of busy hosts, kWh", |run| run.host_kwh * TimeScale::DEMO.0),
    ("cost, EUR", |run| run.cost * TimeScale::DEMO.0),
    ("restarts", |run| run.restarts as f64),
    ("- of runs younger than a restart takes", |run| run.young_stops as f64),
    ("- for the budget, far below it", |run| run.power_stops as f64),
    ("seconds above the power budget", |run| run.seconds_above_budget),
    ("pods bound", |run| run.pods_bound as f64),
    ("- by the extender", |run| run.pods_bound_by_extender as f64),
];

/// Of plain Kubernetes or of the product; its method where that is not the default.
fn name(method: &str) -> String {
    match method {
        crate::plain::METHOD => "plain Kubernetes".into(),
        method if method == MethodName::default().as_str() => "ANDREAS".into(),
        method => format!("ANDREAS, {method}"),
    }
}

/// A number with three digits that count, or all before the point; none where it is 0.
pub fn figure(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".into();
    }
    let digits = (2.0 - value.abs().log10().floor()).clamp(0.0, 12.0) as usize;
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.digits$}") }
}

fn seconds(later: Timestamp, earlier: Timestamp) -> f64 {
    later.duration_since(earlier).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use andreas_test_nodes::control::NodeInfo;
    use jiff::SignedDuration;
    use serde_json::{Value, json};

    use super::*;
    use crate::nodes::Nodes;

    const START: Timestamp = Timestamp::UNIX_EPOCH;

    fn at(seconds: i64) -> Timestamp {
        START + SignedDuration::from_secs(seconds)
    }

    fn policy() -> EnergyPolicySpec {
        serde_json::from_value(crate::policy(&Nodes::real())).unwrap()
    }

    /// A job of weight 10 that was created at 0, due at 30, and done at that second.
    fn job(done: i64, history: &[Value]) -> SlimTrainingJob {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "creationTimestamp": at(0)},
            "spec": {"epochs": 10, "weight": 10, "template": {"spec": {"containers": []}}},
            "status": {"phase": "Succeeded", "deadline": at(30), "completionTime": at(done),
                "restarts": history.len(), "history": history}}))
        .unwrap()
    }

    fn stop(reason: &str, started: i64, stopped: i64) -> Value {
        json!({"attempt": 1, "outcome": "Stopped", "reason": reason, "gpuType": "A", "gpus": 1, "placement": "n",
            "started": at(started), "plannedStop": at(stopped), "ended": at(stopped + 1)})
    }

    /// Readings of a node whose one GPU draws so much at each of these seconds, and whose counter goes up by 3.6 MJ.
    fn reading(draws: &[(i64, f64)]) -> Reading {
        let mut reading = Reading::default();
        for (n, (second, watts)) in draws.iter().enumerate() {
            let info: NodeInfo = serde_json::from_value(json!({
                "name": "node-1", "online": true, "bootId": "b", "refusedForGpus": [],
                "gpus": [{"uuid": "GPU-0", "healthy": true, "holder": "pod"}],
                "hardware": [{"uuid": "GPU-0", "watts": watts, "joules": n as f64 * 3.6e6, "limitWatts": 400.0,
                    "lockedMhz": null, "atDefaults": true}]}))
            .unwrap();
            reading.add(&[info], &Nodes::real(), 3_600.0, at(*second));
        }
        reading
    }

    #[test]
    fn a_run_costs_metered_energy_lateness_and_time_in_the_system() {
        let run = MeasuredRun::of(&[job(90, &[])], &reading(&[(0, 400.0), (90, 400.0)]), &policy());
        assert_eq!((run.jobs, run.finished, run.late, run.restarts), (1, 1, 1, 0));
        assert_eq!((run.weighted_tardiness, run.mean_turnaround_s), (600.0, 90.0));
        // 1 kWh of the GPU; its host draws 500 W for two hours.
        assert!((run.energy_kwh - 1.0).abs() < 1e-9 && (run.host_kwh - 1.0).abs() < 1e-9, "{run:?}");
        // 2 kWh at 0.2 x 1.3; 60 s late, 3 s for the miss, a tenth of 90 s in the system, at 10 x 0.02 an hour.
        let cost = 2.0 * 0.26 + 10.0 * 0.02 / 3_600.0 * (60.0 + 3.0 + 9.0);
        assert!((run.cost - cost).abs() < 1e-6, "{run:?}, {cost}");
        let in_time = MeasuredRun::of(&[job(20, &[])], &Reading::default(), &policy());
        assert_eq!((in_time.late, in_time.weighted_tardiness, in_time.energy_kwh), (0, 0.0, 0.0));
    }

    #[test]
    fn stops_of_young_attempts_and_stops_for_a_budget_with_room_are_counted() {
        let budget = Nodes::real().budget() as f64 - 500.0;
        let reading = reading(&[(5, 400.0), (50, budget)]);
        let history = [
            stop("Stopping", 10, 15),
            stop("DeferredForEnergy", 20, 26),
            stop("PowerBudget", 3, 5),
            stop("PowerBudget", 30, 50),
        ];
        let run = MeasuredRun::of(&[job(60, &history)], &reading, &policy());
        assert_eq!((run.young_stops, run.power_stops, run.restarts), (1, 1, 4), "{run:?}");
    }

    #[test]
    fn jobs_are_billed_for_no_more_than_their_hosts_drew() {
        let run = MeasuredRun { host_kwh: 2.0, ..MeasuredRun::default() };
        let summary = Summary { run, billed_host_kwh: 0.5, ..Summary::default() };
        assert_eq!(summary.billed_too_much(), None);
        assert!(Summary { billed_host_kwh: 2.3, ..summary }.billed_too_much().is_some());
    }

    #[test]
    fn runs_stand_side_by_side_with_their_ratio_and_digits_that_count() {
        let run = |method: &str, cost: f64| MeasuredRun {
            method: method.into(),
            energy_kwh: 0.000_122,
            cost,
            late: 3,
            ..MeasuredRun::default()
        };
        let runs = vec![run(crate::plain::METHOD, 4.0), run("edf", 1.0)];
        let summary = Summary { run: runs[1].clone(), runs, ..Summary::default() };
        let lines = summary.comparison();
        let row = |name: &str| {
            let line = lines.iter().find(|line| line.starts_with(name)).unwrap();
            line[WIDTH..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("cost"), ["1400", "350", "0.250"]);
        assert_eq!(row("energy of GPUs"), ["0.0427", "0.0427", "1"]);
        assert_eq!(
            (row("late"), row("restarts")),
            (vec!["3".into(), "3".into(), "1".into()], vec!["0".into(), "0".into(), "-".into()])
        );
        assert!(!lines.iter().any(|line| line.contains(" 0.00 ")), "{lines:?}");
        let alone = Summary { runs: vec![summary.run.clone()], ..summary };
        assert!(!alone.comparison().iter().any(|line| line.contains("ratio") || line.contains("plain")));
        let text = serde_json::to_value(&alone).unwrap();
        assert_eq!((&text["late"], &text["runs"][0]["method"]), (&json!(3), &json!("edf")));
    }
}
