//! Names on the command line. They become parts of paths of requests: nothing but a name may pass, or `bert#2` would act on `bert`.

pub use andreas_runtime::arguments::{namespace, non_empty, object};

/// How `-o name` prints a job, and kubectl does.
const JOB_RESOURCES: [&str; 5] =
    ["trainingjob", "trainingjobs", "tj", "trainingjob.andreas.dev", "trainingjobs.andreas.dev"];

/// Name of a TrainingJob, also as `trainingjob/NAME`.
///
/// # Errors
/// When it is none.
pub fn job(text: &str) -> Result<String, String> {
    let name = match text.split_once('/') {
        Some((kind, name)) if JOB_RESOURCES.contains(&kind) => name,
        _ => text,
    };
    object(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_a_name_becomes_part_of_a_path() {
        for name in ["bert", "bert-2", "a.b", "0"] {
            assert_eq!(job(name), Ok(name.to_owned()));
        }
        for wrong in
            ["", "bert#2", "bert?dryRun=All", "a/b", "..", ".", "a b", "A", "-a", "a-", "é", "a%2f", "pod/a"]
        {
            assert!(job(wrong).is_err() && namespace(wrong).is_err(), "{wrong}");
        }
        assert!(
            namespace("team-a").is_ok() && namespace("a.b").is_err() && namespace(&"a".repeat(64)).is_err()
        );
        assert!(non_empty(" ").is_err() && non_empty("x").is_ok());
    }

    #[test]
    fn a_job_is_named_as_output_names_it() {
        for text in ["trainingjob/bert", "tj/bert", "trainingjobs/bert", "trainingjob.andreas.dev/bert"] {
            assert_eq!(job(text), Ok("bert".to_owned()));
        }
        assert!(job("trainingjob/").is_err() && job("trainingjob/a/b").is_err());
    }
}
