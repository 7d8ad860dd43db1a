//! Parts of answers as people read them.

use andreas_query::{Ahead, CostParts, Expected, Interval, QueuedJob};
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

/// An interval, from now: `in 1h05m (58m to 1h20m)`.
pub fn interval(of: &Interval, now: Timestamp) -> String {
    let seconds = |at: &Time| (at.0.as_second() - now.as_second()).max(0);
    let (low, high) = (seconds(&of.p10), of.p90.as_ref().map(seconds));
    let median = from_now(&of.p50, now);
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
        money(of.energy_micros),
        money(of.lateness_micros),
        money(of.turnaround_micros)
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

/// Shifts (`laterSeconds`) of a job that has no end any more, or had none before: ten years.
const NEVER: i64 = 320_000_000;
const LEAST: i64 = -NEVER;

/// A shift of an end in words: `12m later`, `3h sooner`, `never`.
pub fn shift(later_seconds: i64) -> String {
    match later_seconds {
        NEVER.. => return "never".to_owned(),
        ..=LEAST => return "at all".to_owned(),
        _ => {}
    }
    let length = duration(later_seconds.saturating_abs());
    if later_seconds >= 0 { format!("{length} later") } else { format!("{length} sooner") }
}

#[cfg(test)]
mod tests {
    use super::*;

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
