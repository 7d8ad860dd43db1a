//! Ends that the states of containers do not explain: whose Events are asked for, and how long a judgement waits for them.

use std::collections::BTreeSet;

use andreas_api::training_job::Progress;
use andreas_api::{Outcome, Phase, Reason};
use andreas_cluster::instants::after;
use jiff::Timestamp;

use super::judge::{Case, Judgement, NEARLY_DONE};
use super::kubelet::{Cause, cause, end_seen};
use super::late::first_minute;
use super::member::{Member, Members};
use super::observed::Observed;
use super::pod_events::{EventsUnread, PodEvent};
use super::status::percent_text;

/// Seconds for which an Event may come later than the end that it explains.
const LATE_EVENTS: i64 = 5;
/// Seconds for which Events that cannot be read are asked for.
const UNREAD_EVENTS: i64 = 30;

/// UIDs of the pods whose Events decide the next step and are not known.
pub fn questions(o: &Observed<'_>) -> BTreeSet<String> {
    let Some(status) = o.job.status.as_ref().filter(|_| o.job.metadata.deletion_timestamp.is_none()) else {
        return BTreeSet::new();
    };
    let Some(allocation) = &status.allocation else { return BTreeSet::new() };
    let members = Members::new(o, Some(allocation));
    let case = Case { o, allocation, members: &members, stop: status.stop.as_ref(), known_bound: true };
    let mut asked = if o.job.spec.adopts.is_some() { Vec::new() } else { case.ends_to_explain() };
    if status.phase == Phase::Starting && first_minute(o, allocation.attempt).is_some_and(|at| at <= o.now) {
        let container = o.training_container();
        asked.extend(members.gang.iter().filter(|member| member.started_at(container).is_none()));
    }
    let uids = asked.into_iter().filter_map(|member| member.pod()?.metadata.uid.clone());
    uids.filter(|uid| !o.kubelet_events.contains_key(uid)).collect()
}

impl<'a> Case<'a> {
    /// Why its kubelet ended a member that was not done.
    pub(super) fn cause(&self, member: &Member<'_>) -> Option<Cause> {
        let clean = || member.ending(self.container()).is_some_and(|ending| ending.exit_code == 0);
        cause(self.o, member, self.container()).filter(|_| !(self.is_at(NEARLY_DONE) && clean()))
    }

    /// Members that ended, and whose kubelet may say why.
    pub(super) fn ends_to_explain(&self) -> Vec<&'a Member<'a>> {
        if self.stop.is_some_and(|stop| stop.outcome.is_some() || !self.ended_before(stop)) {
            return Vec::new();
        }
        let gang = &self.members.gang;
        let code = |m: &Member<'_>| m.ending(self.container()).map(|ending| ending.exit_code);
        let all_ended = gang.iter().all(|m| code(m).is_some());
        let open = |m: &&'a Member<'a>| match code(m) {
            None => false,
            Some(0) if self.is_at(NEARLY_DONE) => false,
            Some(0) => all_ended || self.o.now < after(self.end_seen(m), LATE_EVENTS),
            Some(_) => true,
        };
        gang.iter().filter(open).collect()
    }

    fn end_seen(&self, member: &Member<'_>) -> Timestamp {
        end_seen(self.o, self.allocation.attempt, member)
    }

    /// Until when the judgement of a clean end waits for the Events of its pods; `None`: it does not.
    pub(super) fn events_until(&self) -> Option<Timestamp> {
        self.all_zero().filter(|_| !self.is_at(NEARLY_DONE))?;
        let answers = self.answers();
        let patience = if answers.iter().any(|answer| answer.is_none_or(|a| a.is_err_and(|why| !why.lasting)))
        {
            UNREAD_EVENTS
        } else if self.counted_below_its_end().is_some() && answers.iter().flatten().all(Result::is_ok) {
            LATE_EVENTS
        } else {
            return None;
        };
        let seen = self.members.gang.iter().map(|m| self.end_seen(m)).max()?;
        Some(after(seen, patience)).filter(|until| *until > self.o.now)
    }

    /// What was said to the questions for the Events of each member's pod.
    fn answers(&self) -> Vec<Option<Result<&'a [PodEvent], &'a EventsUnread>>> {
        let answer = |m: &Member<'_>| {
            let answer = self.o.kubelet_events.get(m.pod()?.metadata.uid.as_ref()?)?;
            Some(answer.as_ref().map(Vec::as_slice))
        };
        self.members.gang.iter().map(answer).collect()
    }

    /// Progress by counted steps that are not those of a whole run.
    fn counted_below_its_end(&self) -> Option<&'a Progress> {
        self.progress().filter(|p| p.stepwise && p.milli_percent < NEARLY_DONE)
    }

    /// All exited 0 with steps left, and nobody can say whether their kubelets made them. Such a run is tried again once: to go on
    /// is cheap, and a run that is wrongly taken as finished is lost.
    pub(super) fn unexplained_end(&self) -> Option<Judgement> {
        self.all_zero()?;
        let progress = self.counted_below_its_end()?;
        let unread = self.answers().into_iter().find_map(|answer| answer?.err())?;
        if self.o.job.status.as_ref().is_some_and(|status| status.unexplained_failures > 0) {
            return None;
        }
        let message = format!(
            "all workers exited 0 at {} of the run, and the events of their pods could not be read: {}",
            percent_text(progress.milli_percent),
            unread.message
        );
        Some(Judgement::new(Outcome::ClusterFailure, Reason::ClusterFailure, message))
    }
}
