//! Runs with generated names: what a user's script submits for a row of a trace, and the profile that its program has.
//!
//! Traces have no command lines. Theirs is made up of the model and batch of the row, with a seed, a learning rate, a number of
//! epochs and an output folder of its own, as a hyper-parameter search writes them. Which runs share a profile is then found
//! by the operator's function ([`andreas_predictor::estimates::RunDescription`]), not from the model.

use andreas_model::stable_hash;
use andreas_predictor::estimates::RunDescription;

use super::models::ModelVariant;
use super::traces::TraceJob;

/// Name of the profile that the row's run shares with the others of its program and namespace.
pub(super) fn profile(row: &TraceJob, variant: &ModelVariant) -> String {
    let random = stable_hash(&row.id);
    let name = format!("{}-{:08x}", variant.model.to_ascii_lowercase(), random >> 32);
    let line = [
        "python".to_owned(),
        "train.py".to_owned(),
        format!("--model={}", variant.model),
        format!("--batch-size={}", variant.batch.unwrap_or_default()),
        format!("--seed={}", random % 10_000),
        format!("--learning-rate={}e-4", random % 97 + 1),
        format!("--epochs={}", random % 200 + 1),
        format!("--output-dir=/results/{name}"),
    ];
    let run = RunDescription {
        name: &name,
        image: "lab/train:1",
        command: line.iter().map(String::as_str).collect(),
        ..RunDescription::default()
    };
    format!("{}/{}", row.namespace.as_deref().unwrap_or("trace"), run.program().profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_model_and_batch_share_a_profile_within_their_namespace() {
        let row = |id: &str, namespace: Option<&str>| TraceJob {
            id: id.into(),
            namespace: namespace.map(Into::into),
            ..TraceJob::default()
        };
        let variant = |model: &str, batch: u32| ModelVariant {
            model: model.into(),
            batch: Some(batch),
            ..ModelVariant::default()
        };
        let of = |id: &str, namespace: Option<&str>, model: &str, batch: u32| {
            profile(&row(id, namespace), &variant(model, batch))
        };
        let bert = of("1", None, "bert", 64);
        assert_eq!(of("2", None, "bert", 64), bert);
        for other in [of("1", None, "bert", 128), of("1", None, "gpt2", 64), of("1", Some("b"), "bert", 64)] {
            assert_ne!(other, bert);
        }
    }
}
