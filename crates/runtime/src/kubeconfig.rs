//! kubectl's configuration: which files it is, and what is wrong with it in words that show no secret.

use std::error::Error;
use std::path::{Path, PathBuf};

use kube::Config;
use kube::client::AuthError;
use kube::config::{AuthInfo, Cluster, Context, ExecAuthCluster, Kubeconfig, KubeconfigError, LoadDataError};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::proxy;

/// Why there is no configuration, or no credentials.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// A file or field of the kubeconfig.
    #[error("kubeconfig: {0}")]
    Configuration(String),
    /// A token, certificate or plug-in.
    #[error("no credentials: {0}")]
    Credentials(String),
}

/// Reads the file of the flag, else those of $KUBECONFIG that exist, else ~/.kube/config.
///
/// # Errors
/// When none can be read.
pub fn read(flag: Option<&Path>) -> Result<Kubeconfig, Unusable> {
    let Some(listed) = std::env::var_os("KUBECONFIG").filter(|value| flag.is_none() && !value.is_empty())
    else {
        return match flag {
            Some(file) => read_file(file),
            None => Kubeconfig::read().map(without_empty_context).map_err(|error| explained(&error)),
        };
    };
    let files: Vec<PathBuf> =
        std::env::split_paths(&listed).filter(|file| !file.as_os_str().is_empty()).collect();
    merged(&files)
}

/// As kubectl merges them: a file that does not exist is as an empty one.
fn merged(files: &[PathBuf]) -> Result<Kubeconfig, Unusable> {
    let there: Vec<&PathBuf> = files.iter().filter(|file| file.try_exists().unwrap_or(true)).collect();
    if let (true, Some(first)) = (there.is_empty(), files.first()) {
        return read_file(first);
    }
    there.into_iter().try_fold(Kubeconfig::default(), |all, file| {
        all.merge(read_file(file)?).map_err(|error| explained(&error))
    })
}

/// `kubectl config unset current-context` leaves an empty name: it is as none, and another file's counts.
fn without_empty_context(mut read: Kubeconfig) -> Kubeconfig {
    read.current_context = read.current_context.filter(|name| !name.is_empty());
    read
}

fn read_file(file: &Path) -> Result<Kubeconfig, Unusable> {
    Kubeconfig::read_from(file).map(without_empty_context).map_err(|error| {
        let words = match &error {
            KubeconfigError::ReadConfig(cause, _) => cause.to_string(),
            other => message(other),
        };
        Unusable::Configuration(format!("{}: {words}", file.display()))
    })
}

/// What is used of a kubeconfig in place of what its current context names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Another context.
    pub context: Option<String>,
    /// Another cluster than the context's.
    pub cluster: Option<String>,
    /// Another user than the context's.
    pub user: Option<String>,
    /// Another address than the cluster's.
    pub server: Option<String>,
}

/// The configuration of a client by a kubeconfig. The proxy is the cluster's `proxy-url`, else that of the environment: kube's own reader
/// holds NO_PROXY against the proxy's address, and knows no cluster by its address alone.
///
/// # Errors
/// What it lacks, or what is wrong with it.
pub fn configuration(kubeconfig: &Kubeconfig, choice: &Choice) -> Result<Config, Unusable> {
    let wrong = |error: KubeconfigError| explained(&error);
    let name = choice.context.as_ref().or(kubeconfig.current_context.as_ref());
    let context = match name {
        // As in kubectl, an address or a cluster needs no context.
        None if choice.server.is_some() || choice.cluster.is_some() => Context::default(),
        None => return Err(wrong(KubeconfigError::CurrentContextNotSet)),
        Some(name) => {
            let context = kubeconfig.contexts.iter().find(|context| context.name == *name);
            let context = context.and_then(|context| context.context.clone());
            context.ok_or_else(|| wrong(KubeconfigError::LoadContext(name.clone())))?
        }
    };
    let name = choice.cluster.as_ref().unwrap_or(&context.cluster);
    let mut cluster = if name.is_empty() {
        Cluster::default()
    } else {
        let cluster = kubeconfig.clusters.iter().find(|cluster| cluster.name == *name);
        let cluster = cluster.and_then(|cluster| cluster.cluster.clone());
        cluster.ok_or_else(|| wrong(KubeconfigError::LoadClusterOfContext(name.clone())))?
    };
    cluster.server = choice.server.clone().or(cluster.server);
    let named = |name: &String| {
        let user = kubeconfig.auth_infos.iter().find(|user| user.name == *name)?;
        Some(user.auth_info.clone().unwrap_or_default())
    };
    // As in kubectl, a context may name a user that there is not.
    let mut user = match &choice.user {
        Some(name) => {
            named(name).ok_or_else(|| Unusable::Configuration(format!("there is no user {name:?}")))?
        }
        None => context.user.as_ref().and_then(named).unwrap_or_else(AuthInfo::default),
    };
    let of_cluster = ExecAuthCluster::try_from(&cluster).map_err(wrong)?;
    let authorities = of_cluster.certificate_authority_data.as_deref().map(|pem| {
        let read = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        read.map(|all| all.into_iter().map(|authority| authority.to_vec()).collect())
            .map_err(|_| Unusable::Configuration("certificate-authority: is no certificate".to_owned()))
    });
    if let Some(exec) = user.exec.as_mut().filter(|exec| exec.provide_cluster_info) {
        exec.cluster = Some(of_cluster.clone());
    }
    let server = cluster.server.ok_or(KubeconfigError::MissingClusterUrl).map_err(wrong)?;
    let mut config =
        Config::new(server.parse().map_err(|error| wrong(KubeconfigError::ParseClusterUrl(error)))?);
    let unusable = |field: &str, problem| Unusable::Configuration(format!("{field}{problem}"));
    config.proxy_url = match cluster.proxy_url.filter(|proxy| !proxy.is_empty()) {
        Some(own) => Some(proxy::address(&own).map_err(|problem| unusable("proxy-url: ", problem))?),
        None => proxy::of_environment(&config.cluster_url, |name| std::env::var(name).ok())
            .map_err(|problem| unusable("", problem))?,
    };
    config.root_cert = authorities.transpose()?;
    config.default_namespace =
        context.namespace.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned());
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or(false);
    config.disable_compression = cluster.disable_compression.unwrap_or(false);
    config.tls_server_name = cluster.tls_server_name;
    config.auth_info = user;
    Ok(config)
}

/// What is wrong with a kubeconfig.
pub fn explained(error: &KubeconfigError) -> Unusable {
    Unusable::Configuration(message(error))
}

/// Message for an error, without content of the file: that may be secret.
fn message(error: &KubeconfigError) -> String {
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

/// The program that makes the credentials, where the kubeconfig names one.
pub fn plug_in(config: &Config) -> Option<String> {
    config.auth_info.exec.as_ref()?.command.clone()
}

/// Why a client or a token cannot be made: of `plug_in`, where the kubeconfig names one.
pub fn unusable(error: &(dyn Error + 'static), plug_in: Option<&str>) -> Unusable {
    let mut cause = Some(error);
    while let Some(one) = cause {
        if let Some(config) = one.downcast_ref::<KubeconfigError>() {
            return explained(config);
        }
        if let Some(auth) = one.downcast_ref::<AuthError>() {
            return Unusable::Credentials(of_auth(auth, plug_in));
        }
        cause = one.source();
    }
    Unusable::Configuration(innermost(error))
}

fn of_auth(error: &AuthError, plug_in: Option<&str>) -> String {
    let named = || plug_in.map_or("exec command".to_owned(), |name| format!("exec command {name:?}"));
    match error {
        AuthError::AuthExecStart(cause) => format!("{} of the kubeconfig: {cause}", named()),
        // Its output may be a token.
        AuthError::AuthExecRun { cmd, out } => {
            let stderr = String::from_utf8_lossy(&out.stderr);
            let named = plug_in.unwrap_or(cmd);
            format!("exec command {named:?} of the kubeconfig: {}: {}", out.status, first_line(stderr.trim()))
        }
        AuthError::AuthExecParse(_) => {
            format!("{} of the kubeconfig: its output is no ExecCredential", named())
        }
        AuthError::ReadTokenFile(cause, file) => format!("tokenFile {}: {cause}", file.display()),
        other => first_line(&other.to_string()),
    }
}

/// Takes white space off the token's end, as kubectl does: it would be no header.
///
/// # Errors
/// When it has other characters that no header may have.
pub fn clean_token(config: &mut Config) -> Result<(), Unusable> {
    let problem = |text: &str| Unusable::Credentials(text.to_owned());
    let mut user = serde_json::to_value(&config.auth_info).map_err(|_| problem("the user cannot be read"))?;
    let Some(token) = user["token"].as_str() else { return Ok(()) };
    let trimmed = token.trim().to_owned();
    if !trimmed.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(problem("the token of the kubeconfig is not one word of ASCII"));
    }
    if trimmed.is_empty() {
        // As absent: a certificate, a file or a plug-in may be named beside it.
        user["token"] = serde_json::Value::Null;
        config.auth_info = serde_json::from_value(user).map_err(|_| problem("the user cannot be read"))?;
    } else if trimmed.len() < token.len() {
        user["token"] = trimmed.into();
        config.auth_info = serde_json::from_value(user).map_err(|_| problem("the user cannot be read"))?;
    }
    Ok(())
}

/// The last cause of a chain: the outer ones name the layers of the client.
pub fn innermost(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
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
    fn what_is_chosen_stands_in_place_of_what_the_context_names() {
        let text = "
current-context: one
clusters:
- {name: a, cluster: {server: 'https://10.0.0.1:6443', proxy-url: 'socks5h://10.0.0.9:1080'}}
- {name: b, cluster: {server: 'https://127.0.0.1:6443', insecure-skip-tls-verify: true}}
users:
- {name: u, user: {token: of-u}}
- {name: v, user: {token: of-v}}
contexts:
- {name: one, context: {cluster: a, user: u, namespace: team}}
";
        let file = Kubeconfig::from_yaml(text).unwrap();
        let token = |config: &Config| serde_json::to_value(&config.auth_info).unwrap()["token"].clone();
        let of = |choice: &Choice| configuration(&file, choice);
        let plain = of(&Choice::default()).unwrap();
        assert_eq!((plain.default_namespace.as_str(), token(&plain)), ("team", "of-u".into()));
        assert_eq!(plain.proxy_url.unwrap().to_string(), "socks5://10.0.0.9:1080/");
        let some = |name: &str| Some(name.to_owned());
        let other = Choice {
            cluster: some("b"),
            user: some("v"),
            server: some("https://localhost:1"),
            ..Choice::default()
        };
        let other = of(&other).unwrap();
        assert_eq!(
            (other.cluster_url.to_string().as_str(), token(&other)),
            ("https://localhost:1/", "of-v".into())
        );
        assert!(other.accept_invalid_certs && other.proxy_url.is_none());
        // An address needs no file, and no context.
        let alone = Choice { server: some("https://localhost:2"), ..Choice::default() };
        let alone = configuration(&Kubeconfig::default(), &alone).unwrap();
        assert_eq!(
            (alone.cluster_url.to_string().as_str(), token(&alone)),
            ("https://localhost:2/", serde_json::Value::Null)
        );
        for (wrong, word) in [
            (Choice { user: some("w"), ..Choice::default() }, "\"w\""),
            (Choice { cluster: some("c"), ..Choice::default() }, "c"),
            (Choice { context: some("two"), ..Choice::default() }, "two"),
            (Choice { server: some("https://a b"), ..Choice::default() }, "uri"),
        ] {
            let error = of(&wrong).unwrap_err().to_string().to_lowercase();
            assert!(error.contains(word), "{error}");
        }
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
    fn an_empty_current_context_is_as_none() {
        let (_first, unset) = written("current-context: \"\"\n");
        let (_second, other) = written("current-context: two\n");
        let found = merged(&[unset.clone(), other]).unwrap();
        assert_eq!(found.current_context.as_deref(), Some("two"));
        let error = configuration(&read(Some(&unset)).unwrap(), &Choice::default()).unwrap_err().to_string();
        assert_eq!(error, format!("kubeconfig: {}", KubeconfigError::CurrentContextNotSet));
    }

    #[test]
    fn a_token_that_ends_with_a_line_break_is_used_without() {
        let of = |token: &str| {
            let mut config = Config::new("https://127.0.0.1:1".parse().unwrap());
            config.auth_info = serde_json::from_value(serde_json::json!({"token": token})).unwrap();
            clean_token(&mut config)
                .map(|()| serde_json::to_value(&config.auth_info).unwrap()["token"].clone())
        };
        assert_eq!(of("abc\n").unwrap(), "abc");
        assert!(of("").unwrap().is_null());
        let error = of("SECRET\nTOKEN").unwrap_err().to_string();
        assert!(error.contains("token") && !error.contains("SECRET"), "{error}");
    }

    #[test]
    fn a_plug_in_is_named_and_its_output_is_not_shown() {
        let start = AuthError::AuthExecStart(std::io::Error::from(std::io::ErrorKind::NotFound));
        let error = unusable(&start, Some("gke-gcloud-auth-plugin")).to_string();
        assert!(error.contains("\"gke-gcloud-auth-plugin\"") && error.contains("not found"), "{error}");
        let error = unusable(&start, None).to_string();
        assert!(error.contains("exec command of the kubeconfig: "), "{error}");
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
