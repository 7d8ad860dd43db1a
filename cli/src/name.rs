//! Names on the command line. They become parts of paths of requests: nothing but a name may pass, or `bert#2` would act on `bert`.

/// Maximum name of a namespace.
const MAX_LABEL: usize = 63;
/// Maximum name of any object.
const MAX_NAME: usize = 253;
/// How `-o name` prints a job, and kubectl does.
const KINDS_OF_JOBS: [&str; 4] = ["trainingjob", "trainingjobs", "tj", "trainingjobs.andreas.dev"];

/// Name of a TrainingJob, also as `trainingjob/NAME`.
///
/// # Errors
/// When it is none.
pub fn job(text: &str) -> Result<String, String> {
    let name = match text.split_once('/') {
        Some((kind, name)) if KINDS_OF_JOBS.contains(&kind) => name,
        _ => text,
    };
    object(name)
}

/// Name of a namespace.
///
/// # Errors
/// When it is none.
pub fn namespace(text: &str) -> Result<String, String> {
    let name = object(text)?;
    if name.len() > MAX_LABEL || name.contains('.') {
        return Err(format!("{text:?} is no name of a namespace: at most {MAX_LABEL} of a-z, 0-9 and -"));
    }
    Ok(name)
}

/// Name of an object: RFC 1123, section 2.1, as the API server checks it.
///
/// # Errors
/// When it is none.
pub fn object(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let good = |part: &str| {
        !part.is_empty() && part.chars().all(inside) && !part.starts_with('-') && !part.ends_with('-')
    };
    if text.len() > MAX_NAME || !text.split('.').all(good) {
        return Err(format!("{text:?} is no name: a-z, 0-9, - and . alone, at most {MAX_NAME}"));
    }
    Ok(text.to_owned())
}

/// A text that is not empty.
///
/// # Errors
/// When it is empty.
pub fn given(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("is empty".to_owned()) } else { Ok(text.to_owned()) }
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
        assert!(given(" ").is_err() && given("x").is_ok());
    }

    #[test]
    fn a_job_is_named_as_output_names_it() {
        for text in ["trainingjob/bert", "tj/bert", "trainingjobs/bert", "trainingjobs.andreas.dev/bert"] {
            assert_eq!(job(text), Ok("bert".to_owned()));
        }
        assert!(job("trainingjob/").is_err() && job("trainingjob/a/b").is_err());
    }
}
