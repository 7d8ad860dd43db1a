//! What is kept between lines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use andreas_baselines::{Memory, Options, Scheduler};
use andreas_model::{JobId, Time};
use andreas_planner::{IntendedChange, Job, JobState, Plan, Prices, Snapshot};

use super::build::{self, RunningJobs};
use super::decision::{DecisionLine, error};
use super::input_error::{InputError, bad};
use super::wire::{MAX_JOBS, State};

/// One client's conversation: tables of jobs, where they were put and since when, the last prices.
pub struct Session {
    options: Options,
    explain: bool,
    known: BTreeMap<JobId, Entry>,
    ran: RunningJobs,
    prices: Option<Prices>,
    intended: Vec<IntendedChange>,
    memory: Option<Memory>,
}

struct Entry {
    table: Arc<Job>,
    /// It was in `jobs` once: when it no longer is, it is done and forgotten.
    arrived: bool,
}

impl Session {
    /// A session that knows nothing yet.
    pub fn new(options: Options, explain: bool) -> Self {
        Self {
            options,
            explain,
            known: BTreeMap::new(),
            ran: RunningJobs::new(),
            prices: None,
            intended: Vec::new(),
            memory: None,
        }
    }

    /// The answer to a line: a decision, or what is wrong with the line. Without end of line.
    pub fn answer(&mut self, line: &[u8]) -> String {
        self.decide(line).unwrap_or_else(|e| error(&e.to_string()))
    }

    fn decide(&mut self, line: &[u8]) -> Result<String, InputError> {
        let state = parse(line)?;
        let new_jobs = self.new_jobs(&state)?;
        let mut snapshot = build::snapshot_of(&state)?;
        let lookup = |id: &str| {
            let fresh = new_jobs.get(id).cloned();
            fresh.or_else(|| self.known.get(id).map(|entry| entry.table.clone()))
        };
        snapshot.jobs = build::jobs(&state, &lookup, &self.ran)?;
        if snapshot.prices.is_none() {
            snapshot.prices.clone_from(&self.prices);
        }
        if state.intended.is_none() {
            snapshot.intended.clone_from(&self.intended);
        }
        let memory = state.memory.or_else(|| self.memory.clone());
        let mut scheduler = Scheduler { memory, ..Scheduler::new(self.options.clone()) };
        let plan =
            scheduler.plan(&snapshot).map_err(|e| InputError { field: e.field, problem: e.problem })?;
        let memory = scheduler.memory;
        let line = DecisionLine { plan: &plan, memory: memory.as_ref(), explain: self.explain };
        let text = serde_json::to_string(&line)
            .map_err(|e| InputError { field: "line".into(), problem: e.to_string() })?;
        self.remember(new_jobs, &snapshot, plan);
        self.memory = memory;
        Ok(text)
    }

    fn new_jobs(&self, state: &State) -> Result<BTreeMap<JobId, Arc<Job>>, InputError> {
        if state.new_jobs.len() > MAX_JOBS {
            return bad("new_jobs", format!("{} are more than {MAX_JOBS}", state.new_jobs.len()));
        }
        let mut new_jobs = BTreeMap::new();
        for (i, entry) in state.new_jobs.iter().enumerate() {
            let table = Arc::new(build::table(entry, i)?);
            if new_jobs.insert(JobId::from(entry.id.as_str()), table).is_some() {
                return bad(format!("new_jobs[{i}].id"), format!("{:?} is there twice", entry.id));
            }
        }
        let ahead =
            self.known.iter().filter(|(id, entry)| !entry.arrived && !new_jobs.contains_key(*id)).count();
        if ahead + new_jobs.len() > MAX_JOBS {
            return bad(
                "new_jobs",
                format!("with those that never came to be in jobs, more than {MAX_JOBS}"),
            );
        }
        Ok(new_jobs)
    }

    /// Remembers what the next line needs: known jobs, running ones and prices. Called only for lines that were
    /// answered with a decision.
    fn remember(&mut self, new_jobs: BTreeMap<JobId, Arc<Job>>, snapshot: &Snapshot, plan: Plan) {
        for (id, table) in new_jobs {
            self.known
                .entry(id)
                .and_modify(|e| e.table = table.clone())
                .or_insert(Entry { table, arrived: false });
        }
        let here: BTreeSet<&JobId> = snapshot.jobs.iter().map(|j| &j.id).collect();
        self.known.retain(|id, entry| {
            entry.arrived |= here.contains(id);
            !entry.arrived || here.contains(id)
        });
        let since = |job: &Job| -> Option<Time> {
            match &job.state {
                JobState::Running { since, .. } | JobState::Starting { since, .. } => Some(*since),
                _ => None,
            }
        };
        self.ran = snapshot
            .jobs
            .iter()
            .filter_map(|job| {
                let goes = plan.jobs.get(&job.id)?.decision.placement()?.clone();
                let held = match &job.state {
                    JobState::Running { placement: p, .. } | JobState::Starting { target: p, .. } => Some(p),
                    _ => None,
                };
                let stays = held.is_some_and(|p| p.same_gpus(&goes));
                let from = since(job).filter(|_| stays).unwrap_or(snapshot.now);
                Some((job.id.clone(), (goes, from)))
            })
            .collect();
        self.prices = plan.prices;
        self.intended = plan.intended;
    }
}

fn parse(line: &[u8]) -> Result<State, InputError> {
    let mut decoder = serde_json::Deserializer::from_slice(line);
    let error_at = |field: String, e: serde_json::Error| InputError { field, problem: e.to_string() };
    let state = serde_path_to_error::deserialize(&mut decoder).map_err(|e| {
        // What ends in the middle has a path that ends in the unknown; what is missing is named by the message only.
        let path = e.path().to_string();
        let path = path.trim_end_matches(['.', '?']).to_owned();
        let problem = e.inner().to_string();
        let missing = problem.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
        match (missing, path.is_empty()) {
            (Some(name), true) => InputError { field: name.to_owned(), problem: "is missing".into() },
            (Some(name), false) => {
                InputError { field: format!("{path}.{name}"), problem: "is missing".into() }
            }
            (None, true) => error_at("line".to_owned(), e.into_inner()),
            (None, false) => error_at(path, e.into_inner()),
        }
    })?;
    decoder.end().map_err(|e| error_at("line".into(), e))?;
    Ok(state)
}
