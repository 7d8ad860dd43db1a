//! A step under construction: the new status with its actions and events.

use std::collections::BTreeSet;

use andreas_api::phase::condition;
use andreas_api::training_job::{Allocation, KEPT_PERCENT, NodeBackoff, Prediction, StopRequest};
use andreas_api::{Outcome, Phase, Reason, TrainingJobStatus};
use andreas_cluster::instants;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::action::{Action, Claim, DeleteReason, EventNote, ProfileUpdate, Step, stops_for_good};
use super::ends;
use super::first_seen::TimedFact;
use super::judge::Judgement;
use super::member::{Member, Members};
use super::observed::{NodeFact, Observed};
use super::phase_conditions::phase_conditions;
use super::status::{self, ConditionUpdate, ConditionValue};

/// Minimum seconds between two texts of the same waiting reason.
const MESSAGE_INTERVAL: i64 = 60;

/// Seconds that a node is excluded: after the first failure, and at most.
const FIRST_EXCLUSION: i64 = 60;
const MAX_EXCLUSION: i64 = 3600;
/// Consecutive cluster failures without an observed fault after which the failure counts as the user's.
pub(super) const MAX_UNEXPLAINED: i32 = 10;
/// Maximum excluded nodes in a status.
const MAX_EXCLUDED_NODES: usize = 32;

pub(super) struct Draft<'a> {
    pub o: &'a Observed<'a>,
    pub status: TrainingJobStatus,
    pub actions: Vec<Action>,
    pub events: Vec<EventNote>,
    pub learned: Vec<ProfileUpdate>,
    next: Option<Timestamp>,
    facts: BTreeSet<TimedFact>,
    /// The template is refused, or pods of an earlier attempt or an older job block this one. No GPUs are planned.
    pub not_plannable: bool,
    /// The pods wait for GPUs of the allocation that are waking.
    pub waking: bool,
    /// Message that the template was accepted, for the next write.
    pub accepted: Option<String>,
}

impl<'a> Draft<'a> {
    pub fn new(o: &'a Observed<'a>) -> Self {
        Self {
            o,
            status: o.job.status.clone().unwrap_or_default(),
            actions: Vec::new(),
            events: Vec::new(),
            learned: Vec::new(),
            next: None,
            facts: current_facts(o),
            not_plannable: false,
            waking: false,
            accepted: None,
        }
    }

    pub fn now(&self) -> Time {
        instants::time(self.o.now)
    }

    /// Requeues the job at `at`. An instant in the past is ignored: its work is done or waits for an event.
    pub fn requeue_at(&mut self, at: Timestamp) {
        if at > self.o.now && at < Timestamp::MAX {
            // Instants in the status are whole seconds; a timer must not fire before its second is over.
            self.next = Some(self.next.map_or(at, |n| n.min(at)));
        }
    }

    /// When this process first saw a fact that still holds. Time-outs count from it.
    pub fn first_seen(&mut self, fact: TimedFact) -> Timestamp {
        let first = self.o.first_seen.get(&fact).copied().unwrap_or(self.o.now);
        self.facts.insert(fact);
        first
    }

    pub fn event(&mut self, warning: bool, reason: Reason, message: impl Into<String>) {
        self.events.push(EventNote { warning, reason, message: status::bounded(&message.into()) });
    }

    pub fn set_condition(&mut self, kind: &str, truth: ConditionValue, reason: Reason, message: &str) {
        let generation = self.o.job.metadata.generation;
        let update = ConditionUpdate { kind, truth, reason, message };
        status::set_condition(&mut self.status.conditions, &update, generation, self.o.now);
    }

    /// Removes a condition that no longer applies.
    pub fn clear_condition(&mut self, kind: &str) {
        self.status.conditions.retain(|c| c.type_ != kind);
    }

    /// Sets the waiting reason and its text. The text of an unchanged reason is renewed at most once a
    /// minute. Every plan changes such texts (for example the blocking jobs), and a write per waiting job
    /// would dominate a plan's cost.
    pub fn wait_for(&mut self, reason: Reason, message: &str) {
        let present = status::condition(&self.status.conditions, condition::SCHEDULED);
        let present = present.filter(|c| c.status == "False" && c.reason == reason.as_str());
        let renewed = instants::after(self.o.last_write, MESSAGE_INTERVAL);
        if let Some(present) = present.filter(|_| renewed > self.o.now)
            && self.status.reason.as_deref() == Some(reason.as_str())
        {
            if self.not_plannable && present.message != status::bounded(message) {
                // No plan covers this job, so no plan would renew the text.
                self.requeue_at(renewed);
            }
            return;
        }
        self.status.reason = Some(reason.as_str().into());
        self.set_condition(condition::SCHEDULED, ConditionValue::False, reason, message);
    }

    /// Another client removed the allocation from the status: wait for the next plan. Live pods are strays.
    pub fn lose_allocation(&mut self) {
        self.count_decision();
        self.status.stop = None;
        self.status.phase = Phase::Pending;
        self.wait_for(Reason::NotPlannedYet, "waits for the next plan");
    }

    /// The reason in the status, from the closed set.
    pub fn reason(&self) -> Option<Reason> {
        self.status.reason.as_deref().and_then(Reason::parse)
    }

    /// Counts one more decision about this job.
    pub fn count_decision(&mut self) -> i64 {
        let next = self.status.decisions.unwrap_or(0).saturating_add(1);
        self.status.decisions = Some(next);
        next
    }

    /// The plan's decision, if it was made for the job's current state.
    pub fn decision(&self) -> Option<&'a super::observed::Planned> {
        let decision = self.o.decision?;
        (decision.basis == self.status.decisions.unwrap_or(0)).then_some(&decision.planned)
    }

    /// Stops the attempt for an external reason; the job continues later.
    pub fn ask_to_stop(&mut self, reason: Reason, message: impl Into<String>) {
        self.stop(reason, message.into(), None, None);
    }

    /// Stops the attempt for the plan: a restart of the job.
    pub fn ask_to_stop_for_plan(&mut self, reason: Reason, message: impl Into<String>) {
        self.ask_to_stop(reason, message);
        if let Some(stop) = &mut self.status.stop {
            stop.planned = true;
        }
    }

    /// Stops the rest of an attempt that has been judged.
    pub fn stop_judged(&mut self, judgement: &Judgement) {
        let judgement = &self.limit_unexplained(judgement.clone());
        self.exclude(&judgement.exclude);
        self.stop(judgement.reason, judgement.message.clone(), Some(judgement.outcome), judgement.exit_code);
    }

    /// A cluster failure uses no retry. Without an independent report of a fault, the user may have caused
    /// it. After too many in a row it counts as the user's.
    pub fn limit_unexplained(&mut self, mut judgement: Judgement) -> Judgement {
        if judgement.outcome != Outcome::ClusterFailure {
            return judgement;
        }
        if judgement.fault_reported {
            self.status.unexplained_failures = 0;
            return judgement;
        }
        let times = self.status.unexplained_failures.saturating_add(1);
        self.status.unexplained_failures = times;
        if times >= MAX_UNEXPLAINED {
            judgement.outcome = Outcome::UserFailure;
            let words = format!("{}; failure {times} in a row without a fault of a node", judgement.message);
            judgement.message = status::bounded(&words);
        }
        judgement
    }

    fn stop(&mut self, reason: Reason, message: String, outcome: Option<Outcome>, exit_code: Option<i32>) {
        let (now, bound) = (self.now(), self.bound_at());
        let generation = self.count_decision();
        let Some(allocation) = &mut self.status.allocation else { return };
        // An unbound pod must not be bound any more: its label no longer matches.
        allocation.generation = generation;
        if allocation.bound_time.is_none() {
            allocation.bound_time = bound.map(instants::time);
        }
        self.status.stop = Some(StopRequest {
            attempt: allocation.attempt,
            reason: reason.as_str().into(),
            message: status::bounded(&message),
            since: now,
            outcome,
            exit_code,
            planned: false,
        });
        self.status.phase = Phase::Stopping;
        self.status.reason = Some(reason.as_str().into());
        self.set_condition(condition::RUNNING, ConditionValue::False, Reason::Stopping, &message);
        if outcome != Some(Outcome::Finished) {
            self.event(outcome.is_some(), reason, message);
        }
    }

    /// Excludes nodes for a minute, doubling up to an hour with each consecutive failure.
    pub fn exclude(&mut self, nodes: &[String]) {
        for node in nodes {
            let times = match self.status.excluded_nodes.iter().find(|a| a.node == *node) {
                Some(entry) => entry.times.saturating_add(1),
                None => 1,
            };
            let seconds = FIRST_EXCLUSION.saturating_mul(1 << (times - 1).clamp(0, 12)).min(MAX_EXCLUSION);
            let until = instants::time(instants::after(self.o.now, seconds));
            self.status.excluded_nodes.retain(|a| a.node != *node);
            self.status.excluded_nodes.push(NodeBackoff { node: node.clone(), times, until });
        }
        let surplus = self.status.excluded_nodes.len().saturating_sub(MAX_EXCLUDED_NODES);
        self.status.excluded_nodes.drain(..surplus);
    }

    /// When the last member was bound; absent unless all are bound.
    fn bound_at(&self) -> Option<Timestamp> {
        let allocation = self.status.allocation.clone()?;
        let members = Members::new(self.o, Some(&allocation));
        members.gang.iter().map(Member::bound_at).collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    pub fn delete(&mut self, pod: &andreas_api::slim::SlimPod, why: DeleteReason) {
        // An adopted workload's controller deletes its pods.
        if pod.metadata.deletion_timestamp.is_some() || self.o.job.spec.adopts.is_some() {
            return;
        }
        if let (Some(name), Some(uid)) = (&pod.metadata.name, &pod.metadata.uid) {
            self.actions.push(Action::DeletePod { name: name.clone(), uid: uid.clone(), grace: None, why });
        }
    }

    /// A copy of the allocation, to read while the draft changes.
    pub fn allocation(&self) -> Option<Allocation> {
        self.status.allocation.clone()
    }

    fn changed(&self) -> bool {
        match &self.o.job.status {
            Some(old) => *old != self.status,
            None => self.status != TrainingJobStatus::default(),
        }
    }

    pub fn finish(mut self) -> Step {
        if self.o.job.metadata.deletion_timestamp.is_none() {
            self.throttle_texts();
            if self.changed()
                && let Some(accepted) = self.accepted.take()
            {
                self.set_condition(
                    condition::TEMPLATE_ACCEPTED,
                    ConditionValue::True,
                    Reason::AsExpected,
                    &accepted,
                );
            }
            if self.changed() && self.o.job.spec.profile_ref.is_none() {
                self.status.profile.get_or_insert_with(|| self.o.profile.clone());
            }
            self.forecast();
            if self.changed() {
                phase_conditions(&mut self.status, self.o.job.metadata.generation, self.o.now);
            }
            self.throttle_texts();
            self.keep_transitions();
        }
        if self.changed() {
            // A job is deleted as it was read, so that its end is recorded before, and whatever this step adds.
            self.actions.retain(|action| !matches!(action, Action::DeleteJob { .. }));
        }
        let claim = self.claim();
        Step {
            status: self.status,
            actions: self.actions,
            events: self.events,
            next: self.next,
            learned: self.learned,
            claim,
            facts: self.facts,
            waking: self.waking,
        }
    }

    /// Until this instant, changes of texts and forecasts alone are not written.
    fn throttled_until(&self) -> Timestamp {
        instants::after(self.o.last_write, self.o.settings.text_interval_seconds.max(0))
    }

    /// Drops changes of texts alone while the status is throttled.
    fn throttle_texts(&mut self) {
        let until = self.throttled_until();
        let Some(old) = self.o.job.status.as_ref().filter(|_| self.o.now < until) else { return };
        let conditions = status::with_texts_of(&old.conditions, &self.status.conditions);
        let new = std::mem::replace(&mut self.status.conditions, conditions);
        if self.status != *old {
            self.status.conditions = new;
        } else if new != old.conditions {
            self.requeue_at(until);
        }
    }

    /// A condition that changed and changed back within this step keeps its transition time.
    fn keep_transitions(&mut self) {
        let Some(old) = self.o.job.status.as_ref() else { return };
        for condition in &mut self.status.conditions {
            if let Some(before) = status::condition(&old.conditions, &condition.type_)
                && before.status == condition.status
            {
                condition.last_transition_time = before.last_transition_time.clone();
            }
        }
    }

    /// Copies the forecast if the status is written anyway. Otherwise it must have moved by a tenth, with the
    /// last write at least a minute ago. Every plan changes forecasts; writing each change would be the
    /// largest load.
    fn forecast(&mut self) {
        let unplanned = self.status.phase.is_terminal() || self.is_held();
        let old = self.o.job.status.as_ref().and_then(|s| s.prediction.as_ref());
        let wanted = if unplanned { None } else { self.o.forecast };
        let Some(wanted) = wanted else {
            if unplanned {
                self.status.prediction = None;
            }
            self.on_time();
            return;
        };
        let changed = self.changed();
        let throttled_until = self.throttled_until();
        if (changed && old != Some(wanted))
            || (self.o.now >= throttled_until && moved(old, wanted, self.o.now))
        {
            self.status.prediction = Some(wanted.clone());
        } else if moved(old, wanted, self.o.now) {
            self.requeue_at(throttled_until);
        }
        self.on_time();
    }

    /// Whether no plan has the job until somebody changes something: what was predicted holds no longer.
    fn is_held(&self) -> bool {
        let template = status::condition(&self.status.conditions, condition::TEMPLATE_ACCEPTED);
        self.status.phase == Phase::Suspended
            || self.status.phase == Phase::Pending && template.is_some_and(|c| c.status == "False")
    }

    /// Derives the condition `OnTime` and its text from the prediction in the status, or from the end.
    fn on_time(&mut self) {
        let Some(deadline) = self.status.deadline.clone() else {
            self.status.display.on_time = None;
            return self.clear_condition(condition::ON_TIME);
        };
        if let Some(met) = self.status.deadline_met() {
            let done = self.status.completion_time.as_ref().map_or(self.o.now, |done| done.0);
            let late = instants::seconds_between(deadline.0, done);
            self.show_on_time(if met { "Met".into() } else { "Missed".into() });
            return if met {
                self.set_on_time(true, "ended before the deadline");
            } else if late > 0 {
                let late = status::duration_text(late);
                self.set_on_time(false, &format!("ended {late} after the deadline"));
            } else {
                self.set_on_time(false, "failed");
            };
        }
        let Some(percent) = self.status.prediction.as_ref().and_then(|p| p.on_time_percent) else {
            self.status.display.on_time = None;
            return self.clear_condition(condition::ON_TIME);
        };
        self.show_on_time(format!("{percent}%"));
        if percent >= KEPT_PERCENT {
            self.set_on_time(true, "the deadline is predicted to be kept");
        } else {
            self.set_on_time(false, &format!("on time with a probability of {percent} %"));
        }
    }

    fn set_on_time(&mut self, kept: bool, message: &str) {
        let (truth, reason) = if kept {
            (ConditionValue::True, Reason::AsExpected)
        } else {
            (ConditionValue::False, Reason::DeadlineUnreachable)
        };
        self.set_condition(condition::ON_TIME, truth, reason, message);
    }

    fn show_on_time(&mut self, text: String) {
        self.status.display.on_time = Some(text);
    }

    fn claim(&self) -> Claim {
        if self.o.job.metadata.deletion_timestamp.is_some() {
            return self.claim_of_deleted();
        }
        let since = |t: Option<&Time>| t.map_or(self.o.now, |t| t.0);
        let allocation = self.status.allocation.as_ref();
        match self.status.phase {
            Phase::Pending if self.not_plannable => Claim::Nothing,
            Phase::Pending => {
                let own = self.status.not_before.as_ref().map(|t| t.0);
                let until = own.max(self.o.backoff.map(|backoff| backoff.until));
                Claim::Waiting { not_before: until.filter(|t| *t > self.o.now) }
            }
            Phase::Suspended | Phase::Succeeded | Phase::Failed => Claim::Nothing,
            Phase::Starting => Claim::Starting { since: since(allocation.map(|a| &a.since)) },
            Phase::Running => {
                Claim::Running { since: since(allocation.and_then(|a| a.running_time.as_ref())) }
            }
            Phase::Stopping => Claim::Stopping {
                gone_by: self.expected_pod_end(),
                goes_on: !self.o.job.spec.suspend && !stops_for_good(self.o.job, &self.status),
            },
        }
    }

    /// A job that is being deleted holds what its pods hold and requests nothing.
    fn claim_of_deleted(&self) -> Claim {
        let Some(allocation) = self.allocation() else { return Claim::Nothing };
        let members = Members::new(self.o, Some(&allocation));
        let known_bound = allocation.bound_time.is_some() || allocation.running_time.is_some();
        let since = self.status.stop.as_ref().map_or(self.o.now, |stop| stop.since.0);
        if members.gang.iter().all(|member| member.has_ended(self.o, known_bound, since)) {
            return Claim::Nothing;
        }
        Claim::Stopping { gone_by: self.expected_pod_end(), goes_on: false }
    }

    /// Latest expected end of the pods; it may have passed. Absent if a node is unreachable.
    fn expected_pod_end(&self) -> Option<Timestamp> {
        let allocation = self.allocation()?;
        let since = self.status.stop.as_ref()?.since.0;
        let members = Members::new(self.o, Some(&allocation));
        let unreachable = members.gang.iter().any(|m| {
            m.live.is_some_and(|p| !super::member::is_over(p))
                && self.o.nodes.get(m.node).is_some_and(|f| !f.ready)
        });
        (!unreachable).then(|| instants::after(since, super::pods::grace_seconds(&self.o.job.spec)))
    }
}

/// The facts that hold.
fn current_facts(o: &Observed<'_>) -> BTreeSet<TimedFact> {
    let readiness = |(node, fact): (&String, &NodeFact)| TimedFact::Readiness {
        node: node.clone(),
        changed: fact.ready_changed,
    };
    let mut facts: BTreeSet<TimedFact> = o.nodes.iter().map(readiness).collect();
    let Some(status) = &o.job.status else { return facts };
    let Some(allocation) = &status.allocation else { return facts };
    let members = Members::new(o, Some(allocation));
    let attempt = allocation.attempt;
    let container = o.training_container();
    if !members.gang.is_empty() && members.gang.iter().all(Member::bound) {
        facts.insert(TimedFact::Bound { attempt });
    }
    if status.phase == Phase::Running {
        facts.insert(TimedFact::Running { attempt });
        let missing = members.gang.iter().filter(|member| member.pod().is_none());
        facts.extend(missing.map(|member| TimedFact::Missing { attempt, index: member.index }));
    }
    let ended = members.gang.iter().filter(|member| member.ending(container).is_some());
    facts.extend(ended.map(|member| TimedFact::Ended { attempt, index: member.index }));
    facts.extend(ends::not_ready_facts(o, &members));
    let ended = members.gang.iter().filter(|member| member.containers_ended());
    facts.extend(ended.map(|member| TimedFact::ContainersEnded { attempt, index: member.index }));
    facts
}

/// Whether a forecast differs from the one in the status by a tenth of the remaining time, or in its risk
/// class.
fn moved(old: Option<&Prediction>, new: &Prediction, now: Timestamp) -> bool {
    let Some(old) = old else { return true };
    if old.risk != new.risk || old.source != new.source {
        return true;
    }
    match (&old.finish_time, &new.finish_time) {
        (None, None) => false,
        (Some(old), Some(new)) => {
            let left = instants::seconds_between(now, new.0).max(1);
            instants::seconds_between(old.0, new.0).abs() >= (left / 10).max(60)
        }
        _ => true,
    }
}
