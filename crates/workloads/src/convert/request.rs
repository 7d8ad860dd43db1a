//! What the annotations of a job of another kind ask for.

use std::collections::BTreeMap;

use andreas_api::names::{
    ANNOTATION_CHECKPOINT, ANNOTATION_DEADLINE, ANNOTATION_DEADLINE_AFTER, ANNOTATION_EPOCHS,
    ANNOTATION_GPU_TYPES, ANNOTATION_GPUS, ANNOTATION_PREEMPTION, ANNOTATION_PROFILE, ANNOTATION_WEIGHT,
};
use andreas_api::{DurationText, names};
use serde_json::{Map, Value, json};
use thiserror::Error;

/// Most GPUs of a TrainingJob.
pub const MAX_GPUS: i64 = 4096;

/// Most numbers in `spec.gpus.counts` of a TrainingJob.
const MAX_COUNTS: usize = 64;

/// An annotation has an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("annotation {name}: {problem}")]
pub struct AnnotationError {
    /// The annotation.
    pub name: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

/// All annotations that are read.
pub(crate) const READ: [&str; 9] = [
    ANNOTATION_DEADLINE,
    ANNOTATION_DEADLINE_AFTER,
    ANNOTATION_WEIGHT,
    ANNOTATION_PREEMPTION,
    ANNOTATION_EPOCHS,
    ANNOTATION_PROFILE,
    ANNOTATION_CHECKPOINT,
    ANNOTATION_GPUS,
    ANNOTATION_GPU_TYPES,
];

/// An object's annotations.
type Annotations = BTreeMap<String, String>;

/// Fields of a TrainingJob's spec that annotations set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Those that may change: deadline, weight, preemption.
    pub mutable: Map<String, Value>,
    /// Those that are read once: epochs, profile, checkpoint.
    pub fixed: Map<String, Value>,
    /// GPU types allowed; empty: any.
    pub types: Vec<String>,
    /// GPUs that it may be given; `None`: those that its pods ask for.
    pub gpus: Option<Totals>,
}

/// Total numbers of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Totals {
    /// All from the first to the second.
    Range(i64, i64),
    /// These, in ascending order.
    List(Vec<i64>),
}

impl Totals {
    /// Reads `2-8`, `2,4,8` or `4`.
    fn parse(text: &str, most: i64) -> Option<Self> {
        let number = |text: &str| text.trim().parse().ok().filter(|number| (1..=most).contains(number));
        if let Some((from, to)) = text.split_once('-') {
            let (from, to) = (number(from)?, number(to)?);
            return (from <= to).then_some(Self::Range(from, to));
        }
        let mut all: Vec<i64> = text.split(',').map(number).collect::<Option<_>>()?;
        all.sort_unstable();
        all.dedup();
        Some(Self::List(all))
    }

    /// The largest total, and `min`, `max` and `counts` of `spec.gpus`, for pods with `each` GPUs, at least 1.
    ///
    /// # Errors
    /// If no total is a multiple of `each`, or too many are.
    pub fn gpus(&self, each: i64) -> Result<(i64, Map<String, Value>), AnnotationError> {
        let each = each.max(1);
        let all = self.of_pods(each);
        let (Some(least), Some(most)) = (all.first().copied(), all.last().copied()) else {
            return Err(no_gpus(format!("no number of it is a multiple of the {each} GPUs of a pod")));
        };
        let mut gpus = Map::new();
        gpus.insert("min".into(), least.into());
        gpus.insert("max".into(), most.into());
        // A range means what it means in a TrainingJob; pods of several GPUs leave some of it out.
        let whole = matches!(self, Self::Range(..)) && each == 1;
        if all.len() > 1 && !whole {
            if all.len() > MAX_COUNTS {
                return Err(too_many(all.len()));
            }
            gpus.insert("counts".into(), all.into());
        }
        Ok((most, gpus))
    }

    /// Those that pods with so many GPUs each can have.
    fn of_pods(&self, each: i64) -> Vec<i64> {
        match self {
            Self::Range(from, to) => (1..=to / each).map(|pods| pods * each).filter(|n| n >= from).collect(),
            Self::List(all) => all.iter().copied().filter(|number| number % each == 0).collect(),
        }
    }
}

/// Whether the number of pods of a job of this kind with this spec can follow the plan ([`Request::gpus`]).
///
/// # Errors
/// Why it cannot.
pub fn may_follow(kind: &str, spec: &Value) -> Result<(), AnnotationError> {
    if kind != "Job" {
        return Err(no_gpus(format!("the number of pods of a {kind} does not change")));
    }
    if !spec["completions"].is_null() && spec["completionMode"] != "Indexed" {
        let words = "a Job with completions changes its number of pods only with completionMode: Indexed";
        return Err(no_gpus(words.to_owned()));
    }
    Ok(())
}

impl Request {
    /// Reads the annotations.
    ///
    /// # Errors
    /// When one of them has an invalid value.
    pub fn from_annotations(annotations: &Annotations) -> Result<Self, AnnotationError> {
        let text = |name: &str| annotations.get(name).map(String::as_str);
        let mut request = Self::default();
        let mutable = &mut request.mutable;
        if let Some(text) = text(ANNOTATION_DEADLINE) {
            let instant = text.parse::<jiff::Timestamp>();
            // As the API types write an instant, so that the same deadline is the same text.
            let normal = instant.and_then(|at| jiff::fmt::strtime::format("%Y-%m-%dT%H:%M:%SZ", at));
            let normal = normal
                .map_err(|_| wrong(ANNOTATION_DEADLINE, text, "no instant such as 2026-12-01T08:00:00Z"))?;
            mutable.insert("deadline".into(), normal.into());
        }
        if let Some(text) = text(ANNOTATION_DEADLINE_AFTER) {
            if mutable.contains_key("deadline") {
                let problem = format!("not together with {ANNOTATION_DEADLINE}");
                return Err(AnnotationError { name: ANNOTATION_DEADLINE_AFTER, problem });
            }
            let after = DurationText(text.to_owned());
            if after.seconds_or(0) <= 0 {
                return Err(wrong(ANNOTATION_DEADLINE_AFTER, text, "no duration such as 36h"));
            }
            mutable.insert("deadlineAfter".into(), text.into());
        }
        if let Some(weight) = number(annotations, ANNOTATION_WEIGHT, 1000)? {
            mutable.insert("weight".into(), weight.into());
        }
        if let Some(text) = text(ANNOTATION_PREEMPTION) {
            if !matches!(text, "Allowed" | "Never") {
                return Err(wrong(ANNOTATION_PREEMPTION, text, "neither Allowed nor Never"));
            }
            mutable.insert("preemption".into(), text.into());
        }
        let fixed = &mut request.fixed;
        if let Some(epochs) = number(annotations, ANNOTATION_EPOCHS, 10_000_000)? {
            fixed.insert("epochs".into(), epochs.into());
        }
        if let Some(text) = text(ANNOTATION_PROFILE) {
            fixed.insert("profileRef".into(), serde_json::json!({ "name": text }));
        }
        match text(ANNOTATION_CHECKPOINT) {
            None | Some("false") => {}
            // The program saves where it likes: the operator mounts nothing.
            Some("true") => drop(fixed.insert("checkpoint".into(), json!({}))),
            Some(text) => return Err(wrong(ANNOTATION_CHECKPOINT, text, "neither true nor false")),
        }
        let types = text(ANNOTATION_GPU_TYPES).unwrap_or_default();
        if let Some(text) = text(ANNOTATION_GPUS) {
            let read = Totals::parse(text, MAX_GPUS);
            let read =
                read.ok_or_else(|| wrong(ANNOTATION_GPUS, text, "neither 2-8 nor 2,4,8, up to 4096"))?;
            if let Totals::List(all) = &read
                && all.len() > MAX_COUNTS
            {
                return Err(too_many(all.len()));
            }
            request.gpus = Some(read);
        }
        request.types = types.split(',').map(str::trim).filter(|t| !t.is_empty()).map(Into::into).collect();
        Ok(request)
    }
}

fn number(annotations: &Annotations, name: &'static str, most: i64) -> Result<Option<i64>, AnnotationError> {
    let Some(text) = annotations.get(name) else { return Ok(None) };
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.map(Some).ok_or_else(|| wrong(name, text, &format!("no whole number from 1 to {most}")))
}

fn wrong(name: &'static str, text: &str, what: &str) -> AnnotationError {
    let shown: String = text.chars().take(names::MAX_JOB_NAME).collect();
    AnnotationError { name, problem: format!("{shown:?} is {what}") }
}

fn no_gpus(problem: String) -> AnnotationError {
    AnnotationError { name: ANNOTATION_GPUS, problem }
}

fn too_many(numbers: usize) -> AnnotationError {
    no_gpus(format!("it has {numbers} numbers, the most is {MAX_COUNTS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_written_as_the_api_types_write_it() {
        for (given, kept) in [
            ("2026-12-01T09:00:00+01:00", "2026-12-01T08:00:00Z"),
            ("2026-12-01T08:00:00.5Z", "2026-12-01T08:00:00Z"),
            ("2026-12-01T08:00:00Z", "2026-12-01T08:00:00Z"),
        ] {
            let annotations = Annotations::from([(ANNOTATION_DEADLINE.to_owned(), given.to_owned())]);
            let request = Request::from_annotations(&annotations).unwrap();
            assert_eq!(request.mutable["deadline"], kept, "{given}");
            let job = json!({
                "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "metadata": {},
                "spec": {"deadline": given, "gpus": {"min": 1}, "template": {"spec": {"containers": []}}},
            });
            let read: andreas_api::TrainingJob = serde_json::from_value(job).unwrap();
            let written = serde_json::to_value(&read.spec).unwrap();
            assert_eq!(request.mutable["deadline"], written["deadline"], "{given}");
        }
        let annotations = Annotations::from([(ANNOTATION_DEADLINE.to_owned(), "soon".to_owned())]);
        assert!(
            Request::from_annotations(&annotations)
                .unwrap_err()
                .to_string()
                .contains("\"soon\" is no instant")
        );
    }

    #[test]
    fn a_duration_that_the_api_refuses_is_none() {
        let of = |text: &str| {
            Request::from_annotations(&Annotations::from([(
                ANNOTATION_DEADLINE_AFTER.to_owned(),
                text.to_owned(),
            )]))
        };
        assert_eq!(of("1.5h").unwrap().mutable["deadlineAfter"], "1.5h");
        for text in ["soon", "0s", "2d", "10000000s", "1h1h1m1s1s"] {
            let refused = of(text).unwrap_err().to_string();
            assert!(refused.ends_with("is no duration such as 36h"), "{refused}");
        }
    }
}
