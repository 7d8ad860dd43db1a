//! Converts a `TrainingProfile` to the predictor's input. The operator and `kubectl andreas profile` share
//! it, so both use the same data.
//!
//! **In**: spec and status of the resource. **Out**: the predictor's [`Profile`], which observations to keep if
//! there are too many, and what a restart takes. **Not here**: a client, fitting.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use andreas_api::training_profile::{Barred, Observation as StatusObservation, Precision};
use andreas_api::{TrainingProfileSpec, TrainingProfileStatus};
use andreas_model::{Configuration, GpuCount, Seconds, Time, Watts};
use andreas_predictor::{Features, Observation, Profile, TableRow};
use jiff::Timestamp;

/// Converts a profile. `name` identifies it for the predictor: `namespace/name` within a cluster. Rows that
/// the schema would reject are clamped to valid values.
#[must_use]
pub fn to_predictor_profile(
    name: String,
    spec: &TrainingProfileSpec,
    status: Option<&TrainingProfileStatus>,
) -> Profile {
    let seconds = |millis: i64| Seconds(millis as f64 / 1_000.0);
    let given = spec.measurements.iter().map(|m| TableRow {
        gpu_type: m.gpu_type.as_str().into(),
        gpus: GpuCount(count(m.gpus)),
        nodes: Some(count(m.nodes)),
        epoch: Some(seconds(m.millis_per_epoch)),
        power: m.watts.map(|watts| Watts(f64::from(watts))),
    });
    let observations = status.map(|status| status.observations.as_slice()).unwrap_or_default();
    let observations = observations.iter().flat_map(|o| {
        let (gpus, nodes) = (count(o.gpus), count(o.nodes));
        let row = Observation {
            configuration: Configuration {
                gpu_type: o.gpu_type.as_str().into(),
                nodes,
                gpus_per_node: GpuCount((gpus / nodes).max(1)),
                limit: o.power_limit_watts.map(|watts| Watts(f64::from(watts))),
            },
            epoch: Some(seconds(o.millis_per_epoch)),
            watts_per_gpu: o.watts.map(|watts| Watts(f64::from(watts) / f64::from(gpus))),
            epochs: o.milli_epochs as f64 / 1_000.0,
            at: Time(o.at.0.as_second() as f64),
            gpus: (gpus % nodes != 0).then_some(GpuCount(gpus)),
            batch: None,
            claimed: o.claimed,
        };
        // A time may be self-reported; power is always metered by the node agents.
        let metered = row.watts_per_gpu.filter(|_| o.claimed);
        let draw = metered.map(|_| Observation { epoch: None, claimed: false, ..row.clone() });
        let time = Observation { watts_per_gpu: row.watts_per_gpu.filter(|_| !o.claimed), ..row };
        std::iter::once(time).chain(draw)
    });
    let features = spec.features.as_ref();
    Profile {
        name,
        given: given.collect(),
        features: Features {
            model_family: features.and_then(|f| f.model_family.clone()),
            precision: features.and_then(|f| f.precision).map(precision),
            parameters: features.and_then(|f| f.parameters_million).map(f64::from),
            batch: features.and_then(|f| f.batch_size).map(f64::from),
            samples: features.and_then(|f| f.dataset_samples).map(|samples| samples as f64),
        },
        observations: observations.collect(),
    }
}

/// Maximum number of observations in a profile, as in the schema.
pub const MAX_OBSERVATIONS: usize = 64;

/// Whether both are from one attempt. A recreated job of the same name has equal attempt names, but other
/// times.
#[must_use]
pub fn same_run(a: &StatusObservation, b: &StatusObservation) -> bool {
    a.run == b.run && a.at.0.as_second() == b.at.0.as_second()
}

/// Trims a list, ordered oldest first, to [`MAX_OBSERVATIONS`]. The configuration with the most rows loses
/// its oldest row. A hundred runs on one configuration thus do not evict the only run on another.
pub fn trim_observations(rows: &mut Vec<StatusObservation>) {
    while rows.len() > MAX_OBSERVATIONS {
        // Number of rows and index of the oldest, by configuration.
        let mut known: BTreeMap<_, (usize, usize)> = BTreeMap::new();
        for (at, row) in rows.iter().enumerate() {
            let place = (row.gpu_type.as_str(), row.gpus, row.nodes, row.power_limit_watts);
            known.entry(place).or_insert((0, at)).0 += 1;
        }
        let Some((_, oldest)) = known.into_values().max_by_key(|(rows, oldest)| (*rows, Reverse(*oldest)))
        else {
            return;
        };
        rows.remove(oldest);
    }
}

/// Maximum number of barred choices in a profile, as in the schema.
const MAX_BARRED: usize = 32;
/// Seconds for which a size of workers that a kubelet could not place is left out: what others hold there changes.
const SIZE_BARRED: i64 = 3_600;

/// Adds a choice that failed. Of memory that was exhausted, the most GPUs count.
pub fn bar(all: &mut Vec<Barred>, mut new: Barred) {
    let now = new.at.0;
    all.retain(|old| old.gpus_per_worker.is_none() || holds(old, now));
    if let Some(at) = all.iter().position(|old| old.is_like(&new)) {
        // The last one is the last to go.
        let old = all.remove(at);
        new.most_gpus = old.most_gpus.max(new.most_gpus);
        new.at = old.at.max(new.at);
    }
    all.push(new);
    let over = all.len().saturating_sub(MAX_BARRED);
    all.drain(..over);
}

/// Whether that many GPUs of a type with this memory, MiB (0: unknown), are barred; `memory_of`: of another type.
#[must_use]
pub fn bars_gpus(all: &[Barred], gpu_type: &str, gpus: i32, memory_of: impl Fn(&str) -> i64) -> bool {
    all.iter().filter(|barred| barred.gpus_per_worker.is_none()).any(|barred| {
        let Some(of) = barred.gpu_type.as_deref() else { return false };
        let no_larger = || (1..=memory_of(of)).contains(&memory_of(gpu_type));
        match barred.most_gpus {
            Some(most) => gpus <= most && (of == gpu_type || no_larger()),
            None => of == gpu_type,
        }
    })
}

/// Whether a size of workers is still barred.
fn holds(barred: &Barred, now: Timestamp) -> bool {
    now.as_second().saturating_sub(barred.at.0.as_second()) < SIZE_BARRED
}

/// Sizes of workers that are barred at this instant, with their type.
pub fn barred_sizes(all: &[Barred], now: Timestamp) -> impl Iterator<Item = (&str, i32)> {
    all.iter()
        .filter(move |barred| holds(barred, now))
        .filter_map(|barred| Some((barred.gpu_type.as_deref()?, barred.gpus_per_worker?)))
}

/// Seconds that a restart of runs with this profile takes ([`andreas_predictor::restart_time`]).
#[must_use]
pub fn restart_time(status: &TrainingProfileStatus) -> Option<Seconds> {
    andreas_predictor::restart_time(status.restarts.iter().map(|restart| restart.seconds))
}

/// Number of GPUs or nodes: at least one.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(1).max(1)
}

fn precision(precision: Precision) -> String {
    match precision {
        Precision::Fp32 => "fp32",
        Precision::Tf32 => "tf32",
        Precision::Bf16 => "bf16",
        Precision::Fp16 => "fp16",
        Precision::Fp8 => "fp8",
    }
    .to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail so")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_configuration_seen_once_outlasts_a_hundred_runs_of_another() {
        let row = |run: i64, gpu_type: &str, gpus: i32| -> StatusObservation {
            serde_json::from_value(
                json!({"run": format!("a-{run}"), "gpuType": gpu_type, "gpus": gpus, "nodes": 1,
                "millisPerEpoch": 1_000, "milliEpochs": 1_000, "at": instant(run)}),
            )
            .unwrap()
        };
        let mut rows = vec![row(0, "T4", 1), row(1, "A100", 2)];
        for run in 2..200 {
            rows.push(row(run, "A100", 1));
            trim_observations(&mut rows);
        }
        assert_eq!(rows.len(), MAX_OBSERVATIONS);
        assert_eq!((rows[0].run.as_str(), rows[1].run.as_str()), ("a-0", "a-1"));
        let newest: Vec<String> = (138..200).map(|run| format!("a-{run}")).collect();
        assert!(rows[2..].iter().map(|row| &row.run).eq(&newest));
        // If all configurations differ, the oldest row is dropped.
        let mut rows: Vec<_> = (0..65).map(|run| row(run, "A100", run as i32 + 1)).collect();
        trim_observations(&mut rows);
        assert_eq!((rows.len(), rows[0].run.as_str()), (64, "a-1"));
        // Attempts are equal by name and time.
        assert!(same_run(&row(3, "A", 1), &row(3, "B", 1)));
        let later = StatusObservation { at: row(4, "A", 1).at, ..row(3, "A", 1) };
        assert!(!same_run(&row(3, "A", 1), &later));
    }

    #[test]
    fn a_restart_takes_the_upper_quartile_of_those_seen_once_there_are_three() {
        let seen = |seconds: &[i64]| {
            let row = |(n, seconds): (usize, &i64)| json!({"run": format!("a-{n}"), "seconds": seconds, "at": instant(n as i64)});
            let rows: Vec<_> = seconds.iter().enumerate().map(row).collect();
            restart_time(&serde_json::from_value(json!({"restarts": rows})).unwrap()).map(|time| time.0)
        };
        assert_eq!(seen(&[]), None);
        assert_eq!(seen(&[60, 70]), None);
        assert_eq!(seen(&[80, 60, 70, 90]), Some(80.0));
        // One that waited for its volume is bounded by the others.
        assert_eq!(seen(&[60, 3_600, 70]), Some(280.0));
        // Values that the schema would reject are clamped.
        assert_eq!(seen(&[-5, 0, 1]), Some(1.0));
    }

    fn instant(second: i64) -> String {
        format!("2026-01-02T03:{:02}:{:02}Z", second / 60, second % 60)
    }

    #[test]
    fn all_that_a_profile_says_reaches_the_predictor() {
        let spec = serde_json::from_value(json!({
            "features": {"modelFamily": "bert", "parametersMillion": 110, "batchSize": 32, "precision": "bf16"},
            "measurements": [{"gpuType": "T4", "gpus": 2, "millisPerEpoch": 60_000, "watts": 130}],
        }));
        let observed = |gpus: i32, nodes: i32| {
            json!({
                "run": "a-1", "gpuType": "T4", "gpus": gpus, "nodes": nodes, "millisPerEpoch": 35_000, "milliEpochs": 3_000,
                "watts": 240, "powerLimitWatts": 60, "claimed": gpus == 5, "at": "2026-01-02T03:04:05Z",
            })
        };
        let status = serde_json::from_value(json!({"observations": [observed(4, 2), observed(5, 2)]}));
        let profile = to_predictor_profile("lab/bert".into(), &spec.unwrap(), Some(&status.unwrap()));
        assert_eq!(
            (profile.name.as_str(), profile.features.precision.as_deref()),
            ("lab/bert", Some("bf16"))
        );
        assert_eq!(profile.features.parameters, Some(110.0));
        assert_eq!((profile.given[0].gpus, profile.given[0].power), (GpuCount(2), Some(Watts(130.0))));
        let [even, uneven, metered] = &profile.observations[..] else {
            panic!("two rows, one of them in two parts")
        };
        assert_eq!((even.configuration.gpus_per_node, even.gpus), (GpuCount(2), None));
        assert_eq!((uneven.configuration.gpus_per_node, uneven.gpus), (GpuCount(2), Some(GpuCount(5))));
        // The self-reported time, and the power metered meanwhile.
        assert!(!even.claimed && uneven.claimed && !metered.claimed);
        assert_eq!(
            (uneven.watts_per_gpu, metered.epoch, metered.watts_per_gpu),
            (None, None, Some(Watts(48.0)))
        );
        assert_eq!((even.epoch, even.epochs), (Some(Seconds(35.0)), 3.0));
        assert_eq!((even.watts_per_gpu, even.configuration.limit), (Some(Watts(60.0)), Some(Watts(60.0))));
    }
}
