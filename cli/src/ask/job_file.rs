//! The job that a question is about, from a manifest.

use std::path::Path;

use andreas_query::{JobObject, request::JobMetadata};
use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Reads a TrainingJob from a YAML or JSON file; `-` is standard input.
///
/// # Errors
/// When the file cannot be read, or is of another kind.
pub fn read(file: &Path) -> Result<JobObject> {
    let name = file.display();
    let text = match file.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin()).context("standard input")?,
        false => std::fs::read_to_string(file).with_context(|| name.to_string())?,
    };
    parse(&text).with_context(|| name.to_string())
}

fn parse(text: &str) -> Result<JobObject> {
    let object: Value = serde_saphyr::from_str(text).context("is not one object as YAML or JSON")?;
    match object["kind"].as_str() {
        Some("TrainingJob") => {}
        Some(kind) => bail!("is a {kind} and not a TrainingJob; kubectl andreas convert makes one of it"),
        None => bail!("kind: is missing"),
    }
    if !object["spec"].is_object() {
        bail!("spec: is missing");
    }
    let name = object["metadata"]["name"].as_str().map(str::to_owned);
    Ok(JobObject { metadata: JobMetadata { name }, spec: object["spec"].clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_training_job_is_read_and_others_are_named() {
        let job =
            parse("kind: TrainingJob\nmetadata: {name: bert, labels: {a: b}}\nspec: {epochs: 3}").unwrap();
        assert_eq!((job.metadata.name.as_deref(), &job.spec["epochs"]), (Some("bert"), &Value::from(3)));
        let error = |text: &str| format!("{:#}", parse(text).unwrap_err());
        assert!(error("kind: PyTorchJob\nspec: {}").contains("PyTorchJob"));
        assert!(error("spec: {}").contains("kind"));
        assert!(error("kind: TrainingJob").contains("spec"));
        assert!(error("[").contains("YAML"));
    }
}
