//! Conditions and texts of a status. A condition's transition time changes only with its status.

use andreas_api::Reason;
use andreas_api::training_job::Allocation;
use andreas_cluster::instants::time;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Longest text in a status, bytes.
const MAX_TEXT_BYTES: usize = 1024;

/// The text, cut at a character boundary to the maximum status length.
pub fn bounded(text: &str) -> String {
    if text.len() <= MAX_TEXT_BYTES {
        return text.to_owned();
    }
    let mut end = MAX_TEXT_BYTES - 3;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &text[..end])
}

/// The last non-empty line, bounded.
pub fn last_line(text: &str) -> String {
    bounded(text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default())
}

/// Node names as one text.
pub fn placement_text(nodes: &[String]) -> String {
    bounded(&nodes.join(", "))
}

/// `8 x NVIDIA-A100-SXM4-80GB on node-1, node-2`.
pub fn allocation_text(allocation: &Allocation) -> String {
    bounded(&format!(
        "{} x {} on {}",
        allocation.gpus,
        allocation.gpu_type,
        placement_text(&allocation.nodes)
    ))
}

/// Thousandths of a percent as `42%` or `42.5%`.
pub fn percent_text(milli_percent: i32) -> String {
    let tenths = milli_percent.clamp(0, 100_000) / 100;
    if tenths % 10 == 0 { format!("{}%", tenths / 10) } else { format!("{}.{}%", tenths / 10, tenths % 10) }
}

/// `1.24 kWh`, `350 Wh`.
pub fn energy_text(joules: i64) -> String {
    let watt_hours = joules.max(0) as f64 / 3600.0;
    if watt_hours < 1000.0 {
        format!("{watt_hours:.0} Wh")
    } else {
        format!("{:.2} kWh", watt_hours / 1000.0)
    }
}

/// Millionths as `0.31 EUR`.
pub fn money_text(micros: i64, currency: &str) -> String {
    let cents = micros.saturating_add(5_000) / 10_000;
    let sign = if cents < 0 { "-" } else { "" };
    format!("{sign}{}.{:02} {currency}", (cents / 100).abs(), (cents % 100).abs()).trim_end().to_owned()
}

/// A duration as text: `90s`, `15m`, `2h5m`.
pub fn duration_text(seconds: i64) -> String {
    let seconds = seconds.max(0);
    match (seconds / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, 0) => format!("{m}m"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, 0, _) => format!("{h}h"),
        (h, m, _) => format!("{h}h{m}m"),
    }
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionValue {
    /// The condition holds.
    True,
    /// It does not hold.
    False,
    /// Unknown.
    Unknown,
}

impl ConditionValue {
    /// As in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ConditionValue::True => "True",
            ConditionValue::False => "False",
            ConditionValue::Unknown => "Unknown",
        }
    }
}

/// The desired value of a condition.
#[derive(Clone, Debug)]
pub struct ConditionUpdate<'a> {
    /// Its type.
    pub kind: &'a str,
    /// Whether it holds.
    pub truth: ConditionValue,
    /// Machine-readable reason.
    pub reason: Reason,
    /// Human-readable text.
    pub message: &'a str,
}

/// Sets the condition.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    update: &ConditionUpdate<'_>,
    generation: Option<i64>,
    now: Timestamp,
) {
    let message = bounded(update.message);
    let status = update.truth.as_str();
    let reason = update.reason.as_str();
    let Some(condition) = conditions.iter_mut().find(|c| c.type_ == update.kind) else {
        conditions.push(Condition {
            last_transition_time: time(now),
            message,
            observed_generation: generation,
            reason: reason.into(),
            status: status.into(),
            type_: update.kind.into(),
        });
        return;
    };
    if condition.status == status && condition.reason == reason && condition.message == message {
        return;
    }
    if condition.status != status {
        condition.last_transition_time = time(now);
    }
    condition.status = status.into();
    condition.reason = reason.into();
    condition.message = message;
    condition.observed_generation = generation;
}

/// The new conditions with the texts of `old` where status and reason are unchanged.
pub fn with_texts_of(old: &[Condition], new: &[Condition]) -> Vec<Condition> {
    let kept = |c: &Condition| {
        let before = condition(old, &c.type_).filter(|o| o.status == c.status && o.reason == c.reason);
        before.unwrap_or(c).clone()
    };
    new.iter().map(kept).collect()
}

/// The condition of that type.
pub fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_read_well() {
        assert_eq!(percent_text(42_000), "42%");
        assert_eq!(percent_text(42_560), "42.5%");
        assert_eq!(percent_text(100_000), "100%");
        assert_eq!(energy_text(4_464_000), "1.24 kWh");
        assert_eq!(energy_text(1_260_000), "350 Wh");
        assert_eq!(money_text(310_000, "EUR"), "0.31 EUR");
        assert_eq!(money_text(12_345_678, "CHF"), "12.35 CHF");
        assert_eq!(duration_text(125), "2m5s");
        assert_eq!(duration_text(7_500), "2h5m");
        assert_eq!(last_line("a\nRuntimeError: no\n\n"), "RuntimeError: no");
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let text = "ä".repeat(2000);
        assert!(bounded(&text).len() <= MAX_TEXT_BYTES);
    }

    #[test]
    fn a_condition_moves_its_time_with_its_status_only() {
        let (one, two) = (Timestamp::from_second(10).unwrap(), Timestamp::from_second(20).unwrap());
        let mut conditions = Vec::new();
        let mut update = ConditionUpdate {
            kind: "Scheduled",
            truth: ConditionValue::False,
            reason: Reason::WaitingForCapacity,
            message: "a",
        };
        set_condition(&mut conditions, &update, Some(1), one);
        update.reason = Reason::PowerBudget;
        set_condition(&mut conditions, &update, Some(1), two);
        assert_eq!(conditions[0].last_transition_time.0, one);
        assert_eq!(conditions[0].reason, "PowerBudget");
        update.truth = ConditionValue::True;
        set_condition(&mut conditions, &update, Some(1), two);
        assert_eq!(conditions[0].last_transition_time.0, two);
    }
}
