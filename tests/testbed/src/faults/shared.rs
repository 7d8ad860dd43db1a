//! What all connections of a proxy share: rules, records, who is cut off.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::record::{Record, Records};
use super::request::ApiRequest;
use super::rule::{Decision, RuleId, Rules};
use super::upstream::Upstream;

#[derive(Default)]
pub(super) struct State {
    pub rules: Rules,
    pub records: Records,
    pub cut_off: BTreeSet<String>,
    pub everybody_cut_off: bool,
    /// Requests and answers that each rule has held back so far.
    pub held: BTreeMap<RuleId, u64>,
}

impl State {
    pub fn is_cut_off(&self, caller: &str) -> bool {
        self.everybody_cut_off || self.cut_off.contains(caller)
    }
}

pub(super) struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    /// Requests of callers, with their tokens.
    pub callers_upstream: Arc<Upstream>,
    /// Older reads, asked as administrator.
    pub admins_upstream: Arc<Upstream>,
}

impl Shared {
    pub fn new(callers_upstream: Upstream, admins_upstream: Upstream) -> Self {
        Self {
            state: Mutex::default(),
            changed: watch::channel(0).0,
            callers_upstream: Arc::new(callers_upstream),
            admins_upstream: Arc::new(admins_upstream),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something that others wait for.
    pub fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.send_modify(|n| *n += 1);
        result
    }

    /// Waits until `holds` is true of the state.
    pub async fn until(&self, mut holds: impl FnMut(&mut State) -> bool) {
        let mut changes = self.changed.subscribe();
        loop {
            changes.mark_unchanged();
            let next_end = {
                let mut state = self.state();
                if holds(&mut state) {
                    return;
                }
                state.rules.next_end(Instant::now())
            };
            // `changed` cannot fail: `self` owns the sender.
            match next_end {
                Some(at) => drop(tokio::time::timeout_at(at.into(), changes.changed()).await),
                None => drop(changes.changed().await),
            }
        }
    }

    /// Holds something back until a rule is no longer in force.
    pub async fn hold(&self, rule: RuleId) {
        self.change(|state| *state.held.entry(rule).or_insert(0) += 1);
        self.until(|state| !state.rules.in_force(rule, Instant::now())).await;
    }

    /// Notes a request; the number names it from then on.
    pub fn begin(&self, asked: &ApiRequest) -> usize {
        let record = Record {
            at: Instant::now(),
            caller: asked.caller.clone(),
            user_agent: asked.user_agent.clone(),
            verb: asked.verb,
            resource: asked.resource.clone(),
            namespace: asked.namespace.clone(),
            name: asked.name.clone(),
            selector: asked.selector.clone(),
            continues: asked.continues,
            status: None,
            upstream_status: None,
        };
        let mut state = self.state();
        state.records.0.push(record);
        state.records.0.len() - 1
    }

    pub fn decide(&self, asked: &ApiRequest) -> Decision {
        self.change(|state| state.rules.decide(asked, Instant::now()))
    }

    pub fn answered(&self, number: usize, status: u16) {
        self.change(|state| {
            if let Some(record) = state.records.0.get_mut(number) {
                record.status = Some(status);
            }
        });
    }

    pub fn set_upstream_status(&self, number: usize, status: u16) {
        self.change(|state| {
            if let Some(record) = state.records.0.get_mut(number) {
                record.upstream_status = Some(status);
            }
        });
    }
}
