//! kubectl's configuration: which files it is, and what is wrong with it in words that show no secret.

use std::error::Error;
use std::path::{Path, PathBuf};

use kube::client::AuthError;
use kube::config::{Kubeconfig, KubeconfigError, LoadDataError};

use super::error::{ClusterError, innermost};

/// Reads the file of the flag, else those of $KUBECONFIG that exist, else ~/.kube/config.
///
/// # Errors
/// When none can be read.
pub fn read(flag: Option<&Path>) -> Result<Kubeconfig, ClusterError> {
    let Some(listed) = std::env::var_os("KUBECONFIG").filter(|value| flag.is_none() && !value.is_empty())
    else {
        return match flag {
            Some(file) => read_file(file),
            None => Kubeconfig::read().map_err(|error| explained(&error)),
        };
    };
    let files: Vec<PathBuf> =
        std::env::split_paths(&listed).filter(|file| !file.as_os_str().is_empty()).collect();
    merged(&files)
}

/// As kubectl merges them: a file that does not exist is as an empty one.
fn merged(files: &[PathBuf]) -> Result<Kubeconfig, ClusterError> {
    let there: Vec<&PathBuf> = files.iter().filter(|file| file.exists()).collect();
    if let (true, Some(first)) = (there.is_empty(), files.first()) {
        return read_file(first);
    }
    there.into_iter().try_fold(Kubeconfig::default(), |all, file| {
        all.merge(read_file(file)?).map_err(|error| explained(&error))
    })
}

fn read_file(file: &Path) -> Result<Kubeconfig, ClusterError> {
    Kubeconfig::read_from(file).map_err(|error| {
        let words = match &error {
            KubeconfigError::ReadConfig(cause, _) => cause.to_string(),
            other => words(other),
        };
        ClusterError::Configuration(format!("{}: {words}", file.display()))
    })
}

/// What is wrong with a kubeconfig.
pub fn explained(error: &KubeconfigError) -> ClusterError {
    ClusterError::Configuration(words(error))
}

fn words(error: &KubeconfigError) -> String {
    let data = |what: &str, error: &LoadDataError| match error {
        LoadDataError::ReadFile(cause, file) => format!("{what} {}: {cause}", file.display()),
        other => format!("{what}: {other}"),
    };
    match error {
        KubeconfigError::ReadConfig(cause, file) => format!("{}: {cause}", file.display()),
        // Its other lines show the file, with tokens and keys.
        KubeconfigError::Parse(cause) => first_line(&cause.to_string()),
        KubeconfigError::LoadCertificateAuthority(cause) => data("certificate-authority", cause),
        KubeconfigError::LoadClientCertificate(cause) => data("client-certificate", cause),
        KubeconfigError::LoadClientKey(cause) => data("client-key", cause),
        other => first_line(&other.to_string()),
    }
}

/// Why a client or a token cannot be made: of `plug_in`, where the kubeconfig names one.
pub fn unusable(error: &(dyn Error + 'static), plug_in: Option<&str>) -> ClusterError {
    let mut cause = Some(error);
    while let Some(one) = cause {
        if let Some(config) = one.downcast_ref::<KubeconfigError>() {
            return explained(config);
        }
        if let Some(auth) = one.downcast_ref::<AuthError>() {
            return ClusterError::NoCredentials(of_auth(auth, plug_in));
        }
        cause = one.source();
    }
    ClusterError::Configuration(innermost(error))
}

fn of_auth(error: &AuthError, plug_in: Option<&str>) -> String {
    match error {
        AuthError::AuthExecStart(cause) => {
            format!("exec command {:?} of the kubeconfig: {cause}", plug_in.unwrap_or_default())
        }
        // Its output may be a token.
        AuthError::AuthExecRun { cmd, out } => {
            let stderr = String::from_utf8_lossy(&out.stderr);
            let named = plug_in.unwrap_or(cmd);
            format!("exec command {named:?} of the kubeconfig: {}: {}", out.status, first_line(stderr.trim()))
        }
        AuthError::AuthExecParse(_) => {
            format!(
                "exec command {:?} of the kubeconfig: its output is no ExecCredential",
                plug_in.unwrap_or_default()
            )
        }
        AuthError::ReadTokenFile(cause, file) => format!("tokenFile {}: {cause}", file.display()),
        other => first_line(&other.to_string()),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        std::fs::write(&file, text).unwrap();
        (folder, file)
    }

    #[test]
    fn an_error_of_a_file_names_it_and_shows_nothing_of_it() {
        let (_folder, file) = written("users:\n- {name: u, user: {token: \"SECRETTOKEN}}\n");
        let error = read(Some(&file)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("kubeconfig: {}: ", file.display())), "{error}");
        assert!(!error.contains("SECRETTOKEN") && error.contains("line"), "{error}");
        let none = read(Some(Path::new("/nope"))).unwrap_err().to_string();
        assert!(none.starts_with("kubeconfig: /nope: No such file"), "{none}");
    }

    #[test]
    fn files_of_a_list_that_do_not_exist_are_left_out() {
        let (_folder, file) = written("current-context: one\n");
        let found = merged(&["/nope".into(), file]).unwrap();
        assert_eq!(found.current_context.as_deref(), Some("one"));
        let none = merged(&["/nope".into(), "/neither".into()]).unwrap_err().to_string();
        assert!(none.starts_with("kubeconfig: /nope: "), "{none}");
    }

    #[test]
    fn a_plug_in_is_named_and_its_output_is_not_shown() {
        let start = AuthError::AuthExecStart(std::io::Error::from(std::io::ErrorKind::NotFound));
        let error = unusable(&start, Some("gke-gcloud-auth-plugin")).to_string();
        assert!(error.contains("\"gke-gcloud-auth-plugin\"") && error.contains("not found"), "{error}");
        let out = std::process::Command::new("sh")
            .args(["-c", "echo TOKEN; echo 'no login\nmore' >&2; exit 3"])
            .output();
        let run = AuthError::AuthExecRun { cmd: "aws".into(), out: Box::new(out.unwrap()) };
        let error = unusable(&run, None).to_string();
        assert!(
            error.ends_with("exec command \"aws\" of the kubeconfig: exit status: 3: no login"),
            "{error}"
        );
    }
}
