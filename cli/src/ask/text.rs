//! Parts of answers as people read them.

use andreas_api::query::{
    Ahead, CostParts, Expected, Explanation, Interval, MAX_TRIED, NEVER_SECONDS, NotTried, OthersAffected,
    QueuedJob,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::output::{duration, money, plain};

/// An instant, from now: `in 1h05m`, or `12m30s ago`.
pub fn from_now(at: &Time, now: Timestamp) -> String {
    crate::output::ago_or_in(at.0.as_second() - now.as_second())
}

/// An instant in the past: also one in this second, or of a clock that is ahead.
pub fn ago(at: &Time, now: Timestamp) -> String {
    crate::output::ago(at.0.as_second() - now.as_second())
}

/// Text of an interval of instants, relative to `now`: `in 1h05m (58m to 1h20m)`.
pub fn interval(interval: &Interval, now: Timestamp) -> String {
    let seconds = |at: &Time| (at.0.as_second() - now.as_second()).max(0);
    let (low, high) = (seconds(&interval.p10), interval.p90.as_ref().map(seconds));
    let median = from_now(&interval.p50, now);
    match high {
        Some(high) if high - low < 60 => median,
        Some(high) => format!("{median} ({} to {})", duration(low), duration(high)),
        None => format!("{median} ({} to never)", duration(low)),
    }
}

/// Jobs by name and by number: `bert, 2 of other namespaces`.
pub fn jobs(of: &Ahead) -> String {
    let mut parts: Vec<String> = of.names.iter().map(|name| plain(name)).collect();
    let unnamed = of.own.saturating_sub(u32::try_from(of.names.len()).unwrap_or(u32::MAX));
    if unnamed > 0 {
        parts.push(format!("{unnamed} more of this namespace"));
    }
    match of.others {
        0 => {}
        1 => parts.push("1 job of another namespace".to_owned()),
        n => parts.push(format!("{n} jobs of other namespaces")),
    }
    if parts.is_empty() { "no job".to_owned() } else { parts.join(", ") }
}

/// `0.31 EUR (energy 0.12, lateness 0.10, time 0.09)`.
pub fn cost(of: &CostParts, currency: &str) -> String {
    format!(
        "{} {} (energy {}, lateness {}, time in the system {})",
        money(of.total_micros()),
        plain(currency),
        money(of.energy_cost_micros),
        money(of.lateness_cost_micros),
        money(of.turnaround_cost_micros)
    )
}

/// Lines of what is expected of a job.
pub fn expected(job: &QueuedJob, expected: &Expected, currency: &str, now: Timestamp) -> String {
    let mut text = format!("Start:     {}\n", interval(&expected.start, now));
    text += &format!("End:       {}\n", interval(&expected.finish, now));
    if let (Some(deadline), Some(percent)) = (&job.deadline, expected.on_time_percent) {
        text += &format!("Deadline:  {}, on time with {percent} %\n", from_now(deadline, now));
    }
    text += &format!("GPUs:      {} {}\n", expected.gpus, plain(&expected.gpu_type));
    text += &format!("Cost:      {} from now on\n", cost(&expected.cost, currency));
    text
}

/// Lines of what is expected of a job that is not there, or why it would never start.
pub fn expected_or_never(job: &QueuedJob, currency: &str, now: Timestamp) -> String {
    if let Some(expected) = &job.expected {
        return self::expected(job, expected, currency, now);
    }
    let reason = job.reason.as_deref().unwrap_or("no node can run it");
    let mut text = format!("Start:     never: {}\n", plain(reason));
    if let Some(message) = &job.message {
        text += &format!("           {}\n", plain(message));
    }
    text
}

/// Shift of the end of a job that had none before.
const LEAST: i64 = -NEVER_SECONDS;

/// A shift of an end in words: `12m later`, `3h sooner`, `never`.
pub fn shift(later_seconds: i64) -> String {
    match later_seconds {
        NEVER_SECONDS.. => return "never".to_owned(),
        ..=LEAST => return "at all".to_owned(),
        _ => {}
    }
    let length = duration(later_seconds.saturating_abs());
    if later_seconds >= 0 { format!("{length} later") } else { format!("{length} sooner") }
}

/// Lines about the jobs of other namespaces that a change affects; none if it affects none.
pub fn others(of: &OthersAffected) -> String {
    let line = |count: u32, one: &str, many: &str| match count {
        0 => String::new(),
        1 => format!("Others:    1 job of another namespace {one}\n"),
        n => format!("Others:    {n} jobs of other namespaces {many}\n"),
    };
    let mean = shift(of.mean_later_seconds);
    line(of.later, &format!("ends {mean}"), &format!("end {mean} on average"))
        + &line(of.never, "never ends", "never end")
        + &line(of.sooner, "ends sooner", "end sooner")
}

/// What would help a job, or why nothing was tried.
pub fn changes(e: &Explanation, now: Timestamp) -> String {
    let not_tried = match e.not_tried {
        Some(NotTried::ManyJobs) => {
            Some(format!("not tried: more than {MAX_TRIED} jobs, ask with --changes"))
        }
        Some(NotTried::OutOfTime) => Some("not all tried: they took too long, ask with whatif".to_owned()),
        None | Some(NotTried::NotPlanned | NotTried::NotNeeded) => None,
    };
    if e.changes.is_empty() {
        return match (e.not_tried, not_tried) {
            (None, _) => "Changes:   none was found that would help\n".to_owned(),
            (Some(_), why) => why.map(|why| format!("Changes:   {why}\n")).unwrap_or_default(),
        };
    }
    let mut text = "Changes that would help, cheapest first:\n".to_owned();
    for change in &e.changes {
        let mut effects = vec![format!("start {}", interval(&change.expected.start, now))];
        effects.extend(change.expected.on_time_percent.map(|percent| format!("on time with {percent} %")));
        let cost = change.added_cost_micros;
        let sign = if cost < 0 { "saves" } else { "costs" };
        effects.push(format!("{sign} {} {}", money(cost.saturating_abs()), plain(&e.currency)));
        text += &format!("  {}: {}\n", plain(&change.text), effects.join(", "));
    }
    if let Some(why) = not_tried {
        text += &format!("  others were {why}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_job_of_others_is_singular_and_those_that_never_end_have_their_own_line() {
        let of = |later, never, sooner, mean| {
            others(&OthersAffected { later, never, sooner, mean_later_seconds: mean })
        };
        assert_eq!(of(0, 0, 0, 0), "");
        assert_eq!(of(1, 0, 0, 3_600), "Others:    1 job of another namespace ends 1h00m later\n");
        assert_eq!(
            of(2, 1, 3, 3_600),
            "Others:    2 jobs of other namespaces end 1h00m later on average\n\
             Others:    1 job of another namespace never ends\n\
             Others:    3 jobs of other namespaces end sooner\n"
        );
        assert_eq!(of(0, 2, 0, 0), "Others:    2 jobs of other namespaces never end\n");
    }

    #[test]
    fn changes_that_were_not_tried_are_not_called_useless() {
        let at = "2026-01-01T00:00:00Z";
        let text = |not_tried: Option<&str>| {
            let mut answer = serde_json::json!({
                "namespace": "team", "candidates": [], "changes": [], "currency": "EUR",
                "job": {"name": "a", "phase": "Running", "weight": 10, "gpus": "1", "created": at},
            });
            if let Some(reason) = not_tried {
                answer["notTried"] = reason.into();
            }
            changes(&serde_json::from_value(answer).unwrap(), at.parse().unwrap())
        };
        assert_eq!(text(None), "Changes:   none was found that would help\n");
        assert_eq!(text(Some("ManyJobs")), "Changes:   not tried: more than 300 jobs, ask with --changes\n");
        assert_eq!(
            text(Some("OutOfTime")),
            "Changes:   not all tried: they took too long, ask with whatif\n"
        );
        assert_eq!((text(Some("NotNeeded")), text(Some("NotPlanned"))), (String::new(), String::new()));
    }

    #[test]
    fn other_namespaces_are_numbers() {
        let ahead = |names: &[&str], own, others| {
            jobs(&Ahead { names: names.iter().map(|name| (*name).to_owned()).collect(), own, others })
        };
        assert_eq!(ahead(&[], 0, 0), "no job");
        assert_eq!(ahead(&["a", "b"], 5, 1), "a, b, 3 more of this namespace, 1 job of another namespace");
        assert_eq!(ahead(&[], 0, 12), "12 jobs of other namespaces");
    }

    #[test]
    fn an_interval_has_its_ends_if_they_differ() {
        let at = |second| Time(Timestamp::from_second(second).unwrap());
        let now = Timestamp::from_second(0).unwrap();
        let of = |p10, p50, p90: Option<i64>| {
            interval(&Interval { p10: at(p10), p50: at(p50), p90: p90.map(at) }, now)
        };
        assert_eq!(of(3_600, 3_600, Some(3_610)), "in 1h00m");
        assert_eq!(of(1_800, 3_600, Some(7_200)), "in 1h00m (30m00s to 2h00m)");
        assert_eq!(of(1_800, 3_600, None), "in 1h00m (30m00s to never)");
    }
}
