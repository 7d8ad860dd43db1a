//! Whether the template can become a pod: a server-side dry run of a worker tells, in the server's own words.

use andreas_api::Reason;
use andreas_api::phase::condition;
use jiff::Timestamp;

use super::action::Action;
use super::draft::Draft;
use super::pods;
use super::status::{self, Truth, after};

/// Seconds between dry runs of a refused template: at first, and at most.
const FIRST_RETRY: i64 = 1;
const LONGEST_RETRY: i64 = 300;

/// Sees that the API server would take a worker. False while the template is refused.
///
/// A refusal for quota is none of the template's: quota comes last in admission, all else was accepted, and a smaller
/// worker may fit. The planner knows the quota.
pub(super) fn fits(d: &mut Draft<'_>) -> bool {
    let spec = &d.o.job.spec;
    if let Some(words) = unknown_container(d) {
        d.say(condition::TEMPLATE_ACCEPTED, Truth::False, Reason::TemplateRejected, &words);
        d.wait_for(Reason::TemplateRejected, &words);
        d.unfit = true;
        return false;
    }
    let most = spec.gpus.totals().last().copied().unwrap_or(1);
    let gpus = d.o.settings.largest_node_gpus.map_or(most, |largest| most.min(largest.max(1)));
    let accepted =
        format!("the API server admits a worker with {gpus} GPU{}", if gpus == 1 { "" } else { "s" });
    let shown = status::condition(&d.status.conditions, condition::TEMPLATE_ACCEPTED);
    let holds = shown.is_some_and(|c| c.status == "True" && c.message == accepted);
    let shown_true = shown.is_some_and(|c| c.status == "True");
    let was_refused = shown.is_some_and(|c| c.status == "False");
    let refused_since = shown.map_or(d.o.now, |c| c.last_transition_time.0);
    if holds {
        return true;
    }
    let verdict = d.o.verdict.filter(|v| v.gpus == gpus);
    let Some(verdict) = verdict else {
        try_worker(d, gpus);
        // Not known yet. What was refused before stays refused until it is known.
        if was_refused {
            d.unfit = true;
        }
        return !was_refused;
    };
    match &verdict.refusal {
        None => {
            if was_refused || shown_true {
                d.unsay(condition::TEMPLATE_ACCEPTED);
                d.say(condition::TEMPLATE_ACCEPTED, Truth::True, Reason::AsExpected, &accepted);
            }
            // Good news is not worth a write of its own.
            d.accepted = Some(accepted);
            if was_refused && d.reason() == Some(Reason::TemplateRejected) {
                d.wait_for(Reason::NotPlannedYet, "waits for the next plan");
            }
            true
        }
        Some((Reason::QuotaExceeded, words)) => {
            if was_refused {
                d.unsay(condition::TEMPLATE_ACCEPTED);
            }
            if matches!(d.reason(), None | Some(Reason::NotPlannedYet | Reason::TemplateRejected)) {
                d.wait_for(Reason::QuotaExceeded, words);
            }
            retry(d, verdict.at, refused_since, gpus);
            true
        }
        Some((_, words)) => {
            if d.reason() != Some(Reason::TemplateRejected) {
                d.event(true, Reason::TemplateRejected, words.clone());
            }
            d.say(condition::TEMPLATE_ACCEPTED, Truth::False, Reason::TemplateRejected, words);
            d.wait_for(Reason::TemplateRejected, words);
            d.unfit = true;
            retry(d, verdict.at, refused_since, gpus);
            false
        }
    }
}

/// The API server would take a pod whose training container is not there, and it would hold no GPU.
fn unknown_container(d: &Draft<'_>) -> Option<String> {
    let spec = &d.o.job.spec;
    let name = spec.container.as_deref()?;
    let containers = spec.template.spec.as_ref().map(|s| s.containers.as_slice()).unwrap_or_default();
    (!containers.iter().any(|c| c.name == name))
        .then(|| format!("spec.container: the template has no container named {name}"))
}

/// Waits as long again as it has been refused, 1 s at least and 5 min at most: what is refused in a namespace just made, whose
/// account does not exist yet, is accepted a moment later.
fn retry(d: &mut Draft<'_>, tried: Timestamp, since: Timestamp, gpus: i32) {
    let pause = status::seconds_between(since, tried).clamp(FIRST_RETRY, LONGEST_RETRY);
    let due = after(tried, pause);
    if due <= d.o.now { try_worker(d, gpus) } else { d.look_at(due) }
}

fn try_worker(d: &mut Draft<'_>, gpus: i32) {
    let attempt = d.status.attempts.saturating_add(1);
    let pod = pods::unplaced_worker(d.o.job, attempt, gpus, d.o.settings);
    d.actions.push(Action::DryRun { gpus, pod: Box::new(pod) });
}
