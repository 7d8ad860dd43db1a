//! Kubeflow Trainer's wire format (KEP-2779), as its own callbacks send it.

use andreas_lifecycle::judge::NEARLY_DONE;
use serde::{Deserialize, Serialize};

/// Maximum metrics read of one report (KEP-2779's limit).
pub const MAX_METRICS: usize = 256;

/// Body of a report. Unknown fields are ignored, since the format may grow.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportBody {
    /// The report itself; without it nothing changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer_status: Option<TrainerStatus>,
}

/// A training program's report.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrainerStatus {
    /// Percent done, 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_percentage: Option<f64>,
    /// Its own estimate; wrong after a resume in the common callbacks, so it is ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_remaining_seconds: Option<f64>,
    /// Named values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
    /// Time by the program's clock; ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_updated_time: Option<String>,
}

/// A named value, sent as text.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Metric {
    /// Its name, for example `current_step`.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// The used part of a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReportedProgress {
    /// Thousandths of a percent done, 0 to 100000.
    pub milli_percent: i32,
    /// From counted steps or epochs.
    pub stepwise: bool,
    /// 100 percent without a matching count: callbacks post it at the program's end, also after an early
    /// stop.
    pub forced_end: bool,
}

impl ReportedProgress {
    /// A plain 100: the program has ended; its progress is unknown.
    pub fn is_plain_hundred(&self) -> bool {
        self.forced_end && !self.stepwise
    }
}

impl TrainerStatus {
    fn metric(&self, name: &str) -> Option<f64> {
        let found = self.metrics.iter().take(MAX_METRICS).find(|metric| metric.name == name)?;
        found.value.trim().parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)
    }

    fn ratio(&self, part: &str, whole: &str) -> Option<f64> {
        let whole = self.metric(whole).filter(|whole| *whole > 0.0)?;
        Some((self.metric(part)? / whole).min(1.0))
    }

    /// Claimed progress: `current_step / total_steps`, else `current_epoch / epochs`, else the percentage.
    ///
    /// `None`: nothing readable, or the plain 0 that callbacks post at the start, also on resume.
    pub fn reported_progress(&self, epochs: i32) -> Option<ReportedProgress> {
        let percent =
            self.progress_percentage.filter(|percent| percent.is_finite() && (0.0..=100.0).contains(percent));
        let steps = self.ratio("current_step", "total_steps");
        let by_epoch = || {
            let epochs = f64::from(epochs.max(1));
            let whole = self.metric("total_epochs").filter(|whole| *whole > 0.0).unwrap_or(epochs);
            self.metric("current_epoch").map(|done| (done / whole).min(1.0))
        };
        let counted = steps.or_else(by_epoch);
        let share = match counted {
            Some(share) => share,
            None => percent.filter(|percent| *percent > 0.0)? / 100.0,
        };
        let milli_percent = (share * 100_000.0).floor() as i32;
        let stepwise = counted.is_some();
        let forced_end = percent == Some(100.0) && (!stepwise || milli_percent < NEARLY_DONE);
        Some(ReportedProgress { milli_percent, stepwise, forced_end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(json: &str) -> TrainerStatus {
        serde_json::from_str::<ReportBody>(json).expect("a report").trainer_status.expect("a status")
    }

    #[test]
    fn steps_come_before_epochs_before_percent() {
        let all = status(
            r#"{"trainerStatus":{"progressPercentage":10,"metrics":[{"name":"current_step","value":"250"},
            {"name":"total_steps","value":"1000"},{"name":"current_epoch","value":"1"}]}}"#,
        );
        assert_eq!(
            all.reported_progress(2),
            Some(ReportedProgress { milli_percent: 25_000, stepwise: true, forced_end: false })
        );
        let epochs = status(r#"{"trainerStatus":{"metrics":[{"name":"current_epoch","value":"1.5"}]}}"#);
        assert_eq!(epochs.reported_progress(2).expect("a claim").milli_percent, 75_000);
        let percent =
            status(r#"{"trainerStatus":{"progressPercentage":42,"lastUpdatedTime":"2026-01-01T00:00:00Z"}}"#);
        assert_eq!(percent.reported_progress(2).expect("a claim").milli_percent, 42_000);
    }

    #[test]
    fn posts_of_known_callbacks_are_distinguished() {
        assert_eq!(status(r#"{"trainerStatus":{"progressPercentage":0}}"#).reported_progress(1), None);
        let end =
            status(r#"{"trainerStatus":{"progressPercentage":100}}"#).reported_progress(1).expect("a claim");
        assert!(end.is_plain_hundred());
        // A complete count is reliable, whatever the percentage.
        for counted in [
            r#"{"name":"current_epoch","value":"3"}"#,
            r#"{"name":"current_step","value":"9"},{"name":"total_steps","value":"9"}"#,
        ] {
            let json = format!(r#"{{"trainerStatus":{{"progressPercentage":100,"metrics":[{counted}]}}}}"#);
            let done = ReportedProgress { milli_percent: 100_000, stepwise: true, forced_end: false };
            assert_eq!(status(&json).reported_progress(3), Some(done), "{counted}");
        }
        // An early stop: a plain 100 at 40 % of the steps.
        let early = status(
            r#"{"trainerStatus":{"progressPercentage":100,"metrics":[{"name":"current_step","value":"4"},{"name":"total_steps","value":"10"}]}}"#,
        );
        assert_eq!(
            early.reported_progress(1),
            Some(ReportedProgress { milli_percent: 40_000, stepwise: true, forced_end: true })
        );
    }

    #[test]
    fn nonsense_is_not_a_claim() {
        for json in [
            r#"{"trainerStatus":{}}"#,
            r#"{"trainerStatus":{"progressPercentage":-3}}"#,
            r#"{"trainerStatus":{"progressPercentage":1e300}}"#,
            r#"{"trainerStatus":{"metrics":[{"name":"current_step","value":"NaN"},{"name":"total_steps","value":"0"}]}}"#,
            r#"{"trainerStatus":{"metrics":[{"name":"current_epoch","value":"-1"}]}}"#,
        ] {
            assert_eq!(status(json).reported_progress(3), None, "{json}");
        }
    }
}
