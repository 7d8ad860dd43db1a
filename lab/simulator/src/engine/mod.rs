//! The discrete-event replay: at each event a plan is made and carried out, and the accounting is updated.
//!
//! Events are submissions, ends, edges of tariff and budget windows, and failures and repairs of nodes.
//! With corrected predictions, so is the first measured epoch of a job on a GPU type. A plan is also made
//! at the scenario's tick, if any, and at the last plan's [`Plan::next_event`].
//!
//! The cost of a stop and a start (checkpoint, stop, start, load) is the scenario's `restart`, spent on the new
//! GPUs at full draw; a first start costs `first_start`. A job that waits for others to leave ([`JobPlan::after`](andreas_planner::JobPlan::after)) waits until they have stopped. A
//! job on a sleeping node waits until it is up. Training since the last checkpoint is repeated.

mod error;
mod fault;
mod learning;
mod live;
mod meter;
mod nodes;
mod observing;
mod product;
mod record;
mod run;

use std::sync::Arc;

use andreas_model::{JobId, Seconds, Time};
use andreas_planner::{JobState, Placement, Plan, PowerBudget, Snapshot, SnapshotError};

use error::NoisyPredictions;
pub use error::PredictionError;
pub use fault::SimulationError;
pub use learning::Knowledge;
use learning::Learner;
use live::{ActiveJob, Starts};
use meter::Meter;
use nodes::NodeStates;
pub use nodes::Sleep;
pub use product::ProductPolicy;
use record::Record;
use run::Run;

use crate::outcome::Replayed;
use crate::scenario::Scenario;

/// Computes a plan from a snapshot.
pub type Decider<'a> = dyn FnMut(&Snapshot) -> Result<Plan, SnapshotError> + 'a;

/// Events closer than this many seconds are one.
const TOGETHER: f64 = 1e-6;
/// Part of an epoch that counts as no remaining work (rounding).
const NOTHING: f64 = 1e-8;
/// Minimum delay of a planned event, as in the operator. It avoids endless decisions for a job that seems to
/// end before its restart is over.
const IN_VIEW: Seconds = Seconds(5.0);
/// Time between decisions while all jobs wait.
const WAITING_INTERVAL: Seconds = Seconds(900.0);
/// After this many such decisions in a row, the waiting jobs count as never running.
const MAX_IDLE_DECISIONS: u32 = 200;

/// Conditions of a replay; by default those of the product, which learns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions {
    /// Prediction errors; with predicted times, errors of the users' tables.
    pub error: PredictionError,
    /// What the planner knows of times and watts.
    pub knowledge: Knowledge,
    /// Rules that bind a planner which learns.
    pub policy: ProductPolicy,
    /// Shows running jobs as waiting at every decision, like the published ANDREAS simulator.
    pub memoryless: bool,
    /// Jobs save before the plan stops them. Otherwise they repeat their work since the last checkpoint.
    pub saves_when_stopped: bool,
    /// Whether nodes without a job sleep.
    pub sleep: Sleep,
}

impl Conditions {
    /// Those of a planner that knows all times and watts: the bound that the product is compared with.
    #[must_use]
    pub fn all_known() -> Self {
        Self { knowledge: Knowledge::Tables, ..Self::default() }
    }
}

/// Replays a scenario; `progress` gets the number of ended jobs.
///
/// # Errors
/// [`SimulationError`].
pub fn replay(
    scenario: &Scenario,
    conditions: &Conditions,
    decide: &mut Decider<'_>,
    progress: &mut dyn FnMut(usize),
) -> Result<Replayed, SimulationError> {
    let mut replay = Replay::new(scenario, conditions)?;
    replay.run_to_end(decide, progress)?;
    Ok(replay.finish())
}

struct Replay<'a> {
    scenario: &'a Scenario,
    conditions: &'a Conditions,
    nodes: NodeStates,
    now: Time,
    /// When the next decision is due after an event.
    decide_at: Option<Time>,
    next_job: usize,
    /// Parallel to `snapshot.jobs`.
    live: Vec<ActiveJob>,
    snapshot: Snapshot,
    /// The learner, in replays with predicted times.
    learner: Option<Learner>,
    /// Watts of the budget that the last plan left.
    power_left: f64,
    record: Record,
    /// Decisions in a row while all jobs wait.
    waits: u32,
}

impl<'a> Replay<'a> {
    fn new(scenario: &'a Scenario, conditions: &'a Conditions) -> Result<Self, SimulationError> {
        let nodes = NodeStates::new(scenario, conditions.sleep, conditions.error.seed)?;
        let now = scenario.jobs.first().map_or(Time::ZERO, |j| j.submit);
        let mut lateness = scenario.lateness.clone();
        if conditions.knowledge.learns() {
            lateness.aging = lateness.aging.or(conditions.policy.aging);
        }
        let snapshot = Snapshot {
            now,
            tariff: scenario.tariff.clone(),
            budget: scenario.budget.clone().map(|watts| PowerBudget {
                watts,
                margin: 0.0,
                scope_factor: 1.0,
            }),
            lateness,
            restart: scenario.restart,
            wear: if scenario.restart > Seconds::ZERO { scenario.wear } else { Seconds::ZERO },
            gpu_types: scenario.gpu_types.clone(),
            nodes: nodes.planned(scenario),
            namespaces: Vec::new(),
            jobs: Vec::new(),
            prices: None,
            intended: Vec::new(),
        };
        Ok(Self {
            scenario,
            conditions,
            nodes,
            now,
            decide_at: Some(now),
            next_job: 0,
            live: Vec::new(),
            snapshot,
            learner: Learner::new(scenario, conditions),
            power_left: f64::INFINITY,
            record: Record::new(scenario, Meter::new(scenario, conditions.sleep), now),
            waits: 0,
        })
    }

    fn run_to_end(
        &mut self,
        decide: &mut Decider<'_>,
        progress: &mut dyn FnMut(usize),
    ) -> Result<(), SimulationError> {
        let mut planned = None;
        loop {
            self.admit();
            self.apply_outages();
            if self.live.is_empty() && self.next_job == self.scenario.jobs.len() || self.window_is_done() {
                return Ok(());
            }
            let used = self.record.meter.used(&self.live);
            self.nodes.advance(used, self.now);
            let due = self.decide_at.is_some_and(|at| at.0 <= self.now.0 + TOGETHER);
            if due && !self.live.is_empty() {
                planned = self.decide(decide)?;
                let used = self.record.meter.used(&self.live);
                self.nodes.advance(used, self.now);
            }
            if due {
                self.decide_at = None;
            }
            self.record.sum.sleeps += self.nodes.sleep_and_wake(self.scenario, self.now);
            self.record.wake_ups(self.scenario, self.nodes.take_woken(), self.now);
            let Some(next) = self.next_event(planned) else { return Ok(()) };
            // Nothing to decide where only a node's power changes.
            let change = self.next_change().filter(|at| at.0 < next.0 - TOGETHER);
            let to = change.map_or(next, |at| Time(at.0.max(self.now.0)));
            self.record.draw(self.scenario, &self.live, &self.nodes, (self.now, to));
            for live in &mut self.live {
                live.train(self.now, to, self.scenario.checkpoint);
            }
            self.now = to;
            if change.is_none() && self.decide_at.is_none() {
                self.decide_at = Some(to + Seconds(self.scenario.delays.debounce_s));
            }
            self.learn();
            if self.end_jobs() {
                progress(self.record.ended());
            }
        }
    }

    /// A job begins to draw, a node's power changes, or a decision is due.
    fn next_change(&self) -> Option<Time> {
        let later = |at: &Time| at.0 > self.now.0 + TOGETHER;
        let draws = self.live.iter().filter_map(|l| Some(l.run.as_ref()?.draws_from));
        let all = draws.chain(self.nodes.next_change()).chain(self.decide_at);
        all.filter(later).reduce(|a, b| if b < a { b } else { a })
    }

    /// Whether all that counts of a looped trace is over.
    fn window_is_done(&self) -> bool {
        let Some((_, end)) = self.scenario.window else { return false };
        self.now.0 >= end.0 && !self.live.iter().any(|live| self.scenario.counts(&live.truth))
    }

    fn admit(&mut self) {
        while let Some(job) = self.scenario.jobs.get(self.next_job) {
            if job.submit.0 > self.now.0 + TOGETHER {
                break;
            }
            let noisy = NoisyPredictions::new(&self.conditions.error, job, self.next_job);
            let mut seen = job.clone();
            if let Some(noisy) = &noisy {
                seen.estimates = noisy.table(&job.estimates).into();
            }
            if self.conditions.knowledge.learns() {
                seen.min_run = seen.min_run.max(self.conditions.policy.min_run);
            }
            let table = noisy.as_ref().map(|_| seen.estimates.clone());
            let features = self.scenario.features.get(&job.id);
            let shares = self.conditions.knowledge == Knowledge::Learning;
            let program = self.scenario.programs.get(&job.id).filter(|_| shares);
            let unfinished = self.scenario.unfinished.get(&job.id).copied().unwrap_or(0.0);
            let announced = job.epochs_left + unfinished;
            let evidence = self.learner.as_ref().map(|_| {
                Learner::evidence_at_submission(job, announced, features, table.as_deref(), program)
            });
            self.snapshot.jobs.push(seen);
            self.live.push(ActiveJob {
                index: self.next_job,
                truth: Arc::new(job.clone()),
                run: None,
                epochs_left: job.epochs_left,
                unfinished,
                unsaved: Seconds::ZERO,
                unheard_loss: None,
                starts: Starts::default(),
                ran: Seconds::ZERO,
                energy: andreas_model::Joules::ZERO,
                noisy: noisy.filter(|_| evidence.is_none()),
                evidence,
            });
            self.next_job += 1;
        }
    }

    fn apply_outages(&mut self) {
        let (failed, changed) = self.nodes.apply_outages(self.now);
        for i in 0..self.live.len() {
            if self.live[i].run.as_ref().is_some_and(|r| r.nodes.iter().any(|n| failed.contains(n))) {
                self.record.sum.failures += 1;
                self.stop(i);
                self.live[i].starts.node_failed();
            }
        }
        if changed {
            self.snapshot.nodes = self.nodes.planned(self.scenario);
        }
    }

    /// Requests a plan and carries it out. Returns the time of the next requested plan.
    fn decide(&mut self, decide: &mut Decider<'_>) -> Result<Option<Time>, SimulationError> {
        self.snapshot.now = self.now;
        if self.conditions.sleep == Sleep::Rule {
            self.snapshot.nodes = self.nodes.planned(self.scenario);
        }
        self.update_view();
        for (job, live) in self.snapshot.jobs.iter_mut().zip(&mut self.live) {
            job.epochs_left = live.epochs_left + live.unfinished;
            // With predictions, a restart in progress is shown to the planner. Otherwise a job without
            // remaining work would seem to end at once, repeatedly.
            if let Some(run) = live.run.as_ref().filter(|_| self.learner.is_some()) {
                job.epochs_left += (run.ready - self.now).0.max(0.0) / run.pace;
            }
            match self.learner.as_mut().filter(|learner| learner.learning) {
                Some(learner) => {
                    learner.stops.hear(live, self.now);
                    learner.stops.show(live, self.now, job);
                }
                None => {
                    job.lost = live.unsaved;
                    job.usually_lost = Some(self.scenario.checkpoint * 0.5);
                }
            }
            // Free restarts, as in the published instances, are not limited either.
            let free = self.scenario.restart <= Seconds::ZERO;
            job.restarts_last_day = if free { 0 } else { live.starts.by_plan_last_day(self.now) };
            job.state = match &live.run {
                Some(run) if !self.conditions.memoryless => {
                    JobState::Running { placement: run.place.clone(), since: run.since }
                }
                _ => JobState::Waiting,
            };
        }
        let plan =
            decide(&self.snapshot).map_err(|source| SimulationError::Refused { at: self.now, source })?;
        self.record.decision(&plan);
        self.power_left =
            plan.allowed_power.map_or(f64::INFINITY, |allowed| (allowed - plan.budgeted_power).0);
        // Where each job goes, and whether it waits until others have stopped. A job that moves stops as long itself.
        let mut goes: Vec<Option<(Placement, bool)>> = Vec::new();
        for job in &self.snapshot.jobs {
            let decided = plan.jobs.get(&job.id);
            let place = decided.and_then(|decided| decided.decision.placement()).cloned();
            let waits = decided.is_some_and(|decided| !decided.after.is_empty());
            goes.push(place.map(|place| (place, waits)));
        }
        for (i, goes) in goes.iter_mut().enumerate() {
            let stays = |run: &Run| goes.as_ref().is_some_and(|(place, _)| run.place.same_gpus(place));
            if self.live[i].run.as_ref().is_some_and(|run| !stays(run)) {
                goes.iter_mut().for_each(|(_, waits)| *waits = false);
                if self.conditions.saves_when_stopped {
                    self.live[i].unsaved = Seconds::ZERO;
                }
                self.stop(i);
            }
        }
        for (i, goes) in goes.into_iter().enumerate() {
            if let Some((place, waits)) = goes {
                self.start(i, place, waits)?;
            }
        }
        let used = self.record.meter.used(&self.live);
        for (i, (node, used)) in self.scenario.nodes.iter().zip(used).enumerate() {
            let has = if self.nodes.is_down(i) { 0 } else { node.free_gpus.0 };
            if *used > has {
                let node = node.name.clone();
                return Err(SimulationError::OverCapacity { at: self.now, node, used: *used, has });
            }
        }
        self.snapshot.prices = plan.prices;
        self.snapshot.intended = plan.intended;
        self.nodes.expect(plan.deferred);
        Ok(plan.next_event)
    }

    /// Starts or moves a job, changes its limit, or keeps it in place. `waits`: until others have stopped.
    fn start(&mut self, i: usize, place: Placement, waits: bool) -> Result<(), SimulationError> {
        let impossible =
            |job: JobId| SimulationError::Impossible { at: self.now, job, nodes: place.nodes.clone() };
        let live = &self.live[i];
        let pace = live.pace(&place);
        let (Some((pace, watts)), Some(nodes)) = (pace, self.nodes.nodes_named(&place.nodes)) else {
            return Err(impossible(live.truth.id.clone()));
        };
        let live = &mut self.live[i];
        if let Some(run) = &mut live.run {
            if run.place.limit != place.limit {
                (run.epochs, run.observed) = (0.0, 0);
            }
            (run.place, run.pace, run.watts) = (place, pace, watts);
            return Ok(());
        }
        let after_stop = live.starts.was_stopped();
        let again = live.starts.record(self.now);
        self.record.sum.restarts += usize::from(again);
        let delays = &self.scenario.delays;
        let up = nodes.iter().map(|node| self.nodes.wake(self.scenario, *node, self.now));
        let up = up.fold(self.now, |a, b| if b > a { b } else { a });
        let left = self.now + Seconds(if waits { delays.stop_s } else { 0.0 });
        let draws_from = Time(up.0.max(left.0)) + Seconds(delays.bind_s);
        let load = if again { self.scenario.restart } else { Seconds(delays.first_start_s) };
        self.nodes.started(self.scenario, &nodes, place.gpus_per_node.0, self.now);
        let (since, ready) = (self.now, draws_from + load);
        live.run = Some(Run {
            place,
            nodes,
            since,
            draws_from,
            ready,
            restart: after_stop.then(|| Seconds(delays.stop_s) + (ready - since)),
            guard_lifted: false,
            pace,
            watts,
            epochs: 0.0,
            observed: 0,
        });
        Ok(())
    }

    fn stop(&mut self, i: usize) {
        if let Some((run, lost)) = self.live[i].stop() {
            self.record.sum.lost_work += lost;
            self.record.run(self.live[i].index, &run, self.now);
        }
    }

    fn next_event(&mut self, planned: Option<Time>) -> Option<Time> {
        let now = self.now;
        let ends = self.live.iter().filter_map(|l| l.projected_end(now));
        let submission = self.scenario.jobs.get(self.next_job).map(|j| j.submit);
        let outage = self.nodes.next_outage();
        let evidence = self.live.iter().filter_map(|l| self.next_observation_at(l));
        let edges = [
            self.scenario.tariff.next_edge(now),
            self.scenario.budget.as_ref().and_then(|b| b.next_edge(now)),
            self.scenario.tick.map(|tick| now + tick),
        ];
        let coming = ends.chain(submission).chain(outage).chain(evidence);
        let next = coming.reduce(|a, b| if b.0 < a.0 { b } else { a });
        let planned =
            planned.filter(|at| at.0 > now.0 + TOGETHER).map(|at| Time(at.0.max((now + IN_VIEW).0)));
        let waiting = !self.live.is_empty();
        let edge =
            edges.into_iter().flatten().filter(|_| waiting).reduce(|a, b| if b.0 < a.0 { b } else { a });
        if let Some(next) = next {
            self.waits = 0;
            // The plan's next event.
            let edge = edge.into_iter().chain(planned).reduce(|a, b| if b.0 < a.0 { b } else { a });
            return Some(edge.map_or(next, |edge| if edge.0 < next.0 { edge } else { next }));
        }
        // All jobs wait and none will arrive: plan again later, a limited number of times.
        self.waits += 1;
        let again = planned
            .into_iter()
            .chain(edge)
            .fold(now + WAITING_INTERVAL, |a, b| if b.0 < a.0 { b } else { a });
        (self.waits <= MAX_IDLE_DECISIONS).then_some(again)
    }

    /// Removes ended jobs.
    fn end_jobs(&mut self) -> bool {
        let before = self.record.ended();
        let mut i = 0;
        while i < self.live.len() {
            let live = &self.live[i];
            let nothing_left =
                |run: &Run| live.epochs_left <= NOTHING || live.epochs_left * run.pace <= TOGETHER;
            let done = live.run.as_ref().is_some_and(|r| nothing_left(r) && r.ready.0 <= self.now.0);
            if !done {
                i += 1;
                continue;
            }
            // Keep the order, so that the replay cannot depend on it.
            let live = self.live.remove(i);
            self.snapshot.jobs.remove(i);
            if let Some(run) = &live.run {
                self.record.run(live.index, run, self.now);
            }
            if let (Some(learner), Some(evidence)) = (&mut self.learner, &live.evidence) {
                learner.ended(&live.truth, evidence, live.ran);
            }
            self.record.end(self.scenario, &live, self.now);
        }
        self.record.ended() > before
    }

    /// Ends what still runs and sums up.
    fn finish(mut self) -> Replayed {
        for i in 0..self.live.len() {
            self.stop(i);
        }
        self.record.finish(self.scenario, &self.live, self.now)
    }
}
