//! Which cluster, which namespace, and a client for it.

use std::path::PathBuf;
use std::time::Duration;

use andreas_api::DurationText;
use andreas_runtime::client::{self, ClientError};
use andreas_runtime::kubeconfig::{self, Choice, innermost};
use anyhow::{Context, Result};
use clap::Args;
use futures::FutureExt as _;
use http::{Request, Response, header};
use kube::client::{Body, ConfigExt as _};
use kube::config::{AuthInfo, Kubeconfig};
use kube::{Client, Config};
use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};

use super::error::ClusterError;
use crate::name;

/// Which cluster: kubectl's configuration and its current context, unless these say otherwise. Flags that are as kubectl's and hardly needed
/// are not in the help of each command: [`crate::Cli`] names them.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ConnectArgs {
    /// Context of the kubeconfig; the current one without
    #[arg(long, value_name = "NAME", value_parser = name::non_empty)]
    pub context: Option<String>,
    /// Kubeconfig file; $KUBECONFIG or ~/.kube/config without
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Cluster of the kubeconfig; that of the context without
    #[arg(hide = true, long, value_name = "NAME", value_parser = name::non_empty)]
    pub cluster: Option<String>,
    /// User of the kubeconfig; that of the context without
    #[arg(hide = true, long, value_name = "NAME", value_parser = name::non_empty)]
    pub user: Option<String>,
    /// Address of the API server; that of the cluster without
    #[arg(hide = true, long, short, value_name = "URL", value_parser = name::non_empty)]
    pub server: Option<String>,
    /// Bearer token, in place of the user's credentials
    #[arg(hide = true, long, value_name = "TOKEN", value_parser = name::non_empty)]
    pub token: Option<String>,
    /// User to act as, where your own may impersonate it
    #[arg(hide = true, long = "as", value_name = "NAME", value_parser = name::non_empty)]
    pub act_as: Option<String>,
    /// Group to act as; may be given several times
    #[arg(hide = true, long = "as-group", value_name = "NAME", requires = "act_as", value_parser = name::non_empty)]
    pub act_as_groups: Vec<String>,
    /// Do not check the API server's certificate
    #[arg(hide = true, long)]
    pub insecure_skip_tls_verify: bool,
    /// Time that one request to the API server may take (30s, 2m, or seconds); 0 for any
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = request_timeout)]
    pub request_timeout: Duration,
}

/// As kubectl reads it: a duration with units, or whole seconds. None at all is a year.
fn request_timeout(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().or_else(|| DurationText(text.to_owned()).seconds());
    let seconds = seconds.and_then(|seconds: i64| u64::try_from(seconds).ok());
    let seconds = seconds.ok_or_else(|| format!("{text:?} is no duration such as 30s, 2m or 1m30s"))?;
    let year = 365 * 24 * 3600;
    Ok(Duration::from_secs(if seconds == 0 { year } else { seconds.min(year) }))
}

/// Which namespaces, for commands that can show several.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub struct Namespaces {
    /// Namespace; that of the context without
    #[arg(long, short, value_name = "NAME", value_parser = name::namespace)]
    pub namespace: Option<String>,
    /// All namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub all_namespaces: bool,
}

/// The namespaces that a command is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One.
    Namespace(String),
    /// All of the cluster.
    All,
}

impl Scope {
    /// The namespace, if it is one.
    pub fn namespace(&self) -> Option<&str> {
        match self {
            Self::Namespace(name) => Some(name),
            Self::All => None,
        }
    }
}

/// A client and what the kubeconfig says beside it.
#[derive(Clone)]
pub struct Cluster {
    pub(super) client: Client,
    pub(super) url: String,
    pub(super) warnings: bool,
    namespace: String,
}

impl Cluster {
    /// A client for the cluster of these flags. The API server is not asked yet.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read or names no such context.
    pub async fn connect(args: &ConnectArgs) -> Result<Self> {
        let config = configuration(args)?;
        let (url, namespace) = (config.cluster_url.to_string(), config.default_namespace.clone());
        let agent = concat!("kubectl-andreas/", env!("CARGO_PKG_VERSION"));
        let client = client::build(config, agent, args.request_timeout);
        let client = client.map_err(|error| match error {
            ClientError::Kubeconfig(unusable) => ClusterError::from(unusable),
            other => ClusterError::Configuration(innermost(&other)),
        })?;
        Ok(Self { client, url, warnings: true, namespace })
    }

    /// Wraps an existing client, for tests.
    pub fn from_client(client: Client, namespace: &str) -> Self {
        Self { client, url: "http://test".into(), warnings: false, namespace: namespace.into() }
    }

    /// The client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Address of the API server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The namespace of the flag, else that of the context.
    pub fn namespace_or(&self, flag: Option<&str>) -> String {
        flag.unwrap_or(&self.namespace).to_owned()
    }

    /// The namespaces of the flags.
    pub fn scope(&self, flags: &Namespaces) -> Scope {
        if flags.all_namespaces {
            Scope::All
        } else {
            Scope::Namespace(self.namespace_or(flags.namespace.as_deref()))
        }
    }
}

/// As kubectl chooses: the file of the flag, $KUBECONFIG, ~/.kube/config, and in a pod without any of them its service
/// account.
fn configuration(args: &ConnectArgs) -> Result<Config, ClusterError> {
    let choice = Choice {
        context: args.context.clone(),
        cluster: args.cluster.clone(),
        user: args.user.clone(),
        server: args.server.clone(),
    };
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let mut config = match kubeconfig::read(args.kubeconfig.as_deref()).map_err(ClusterError::from) {
        // A cluster that is named is never another one.
        Err(_) if in_pod && args.kubeconfig.is_none() && choice == Choice::default() => {
            Config::incluster().map_err(|error| ClusterError::Configuration(innermost(&error)))?
        }
        Err(_) if args.kubeconfig.is_none() && choice.server.is_some() => {
            kubeconfig::configuration(&Kubeconfig::default(), &choice).map_err(ClusterError::from)?
        }
        read => kubeconfig::configuration(&read?, &choice).map_err(ClusterError::from)?,
    };
    config.accept_invalid_certs |= args.insecure_skip_tls_verify;
    if let Some(token) = &args.token {
        // Whoever the kubeconfig acts as, it still does.
        let AuthInfo { impersonate, impersonate_groups, .. } = config.auth_info;
        let token = Some(token.clone().into());
        config.auth_info = AuthInfo { token, impersonate, impersonate_groups, ..AuthInfo::default() };
    }
    if let Some(name) = &args.act_as {
        config.auth_info.impersonate = Some(name.clone());
        config.auth_info.impersonate_groups = Some(args.act_as_groups.clone()).filter(|all| !all.is_empty());
    }
    // As kubectl reads it.
    if config.default_namespace.is_empty() {
        "default".clone_into(&mut config.default_namespace);
    }
    match name::namespace(&config.default_namespace) {
        Ok(_) => Ok(config),
        Err(problem) => Err(ClusterError::Configuration(format!("namespace of the context: {problem}"))),
    }
}

/// The bearer token that the client of these flags sends; `None` for a client certificate or a password.
///
/// # Errors
/// When the kubeconfig cannot be read, or its authentication plug-in fails.
pub async fn bearer_token(args: &ConnectArgs) -> Result<Option<String>> {
    let mut config = configuration(args)?;
    if config.auth_info.impersonate.is_some() {
        let message = "--as: the operator answers by what a token's own user may read, and --as changes no token: give --token, or \
                       --service-account of that user";
        return Err(ClusterError::Configuration(message.to_owned()).into());
    }
    kubeconfig::clean_token(&mut config).map_err(ClusterError::from)?;
    let plug_in = kubeconfig::plug_in(&config);
    let unusable = |error: &(dyn std::error::Error + 'static)| {
        ClusterError::from(kubeconfig::unusable(error, plug_in.as_deref()))
    };
    let layer = config.auth_layer().map_err(|error| unusable(&error))?;
    let Some(layer) = layer else {
        return Ok(None);
    };
    // The layer of the client's own requests, on a service that sends nothing.
    let service = layer.layer(service_fn(|request: Request<Body>| async move {
        Ok::<_, BoxError>(Response::new(request.headers().get(header::AUTHORIZATION).cloned()))
    }));
    // In a box: else the compiler does not see that this may move between threads, as what a server awaits must.
    let sent = service.oneshot(Request::new(Body::empty())).boxed().await;
    let sent = sent.map_err(|error| unusable(error.as_ref()))?;
    let text = sent.into_body().and_then(|value| value.to_str().ok().map(str::to_owned));
    Ok(text.and_then(|text| text.strip_prefix("Bearer ").map(str::to_owned)))
}

/// Runs what needs the cluster to its end.
///
/// # Errors
/// What it returns, and when the machine gives no more file descriptors.
pub fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("starting the event loop")?.block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: c, cluster: {server: 'https://127.0.0.1:6443'}}
users:
- {name: u, user: {token: t}}
contexts:
- {name: one, context: {cluster: c, user: u, namespace: team-a}}
- {name: two, context: {cluster: c, user: u}}
";

    fn connect(context: Option<&str>, text: &str) -> Result<Cluster> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        std::fs::write(&file, text).unwrap();
        let args = ConnectArgs {
            context: context.map(str::to_owned),
            kubeconfig: Some(file),
            ..ConnectArgs::default()
        };
        block_on(async { Cluster::connect(&args).await })
    }

    #[test]
    fn the_namespace_is_that_of_the_flag_or_of_the_context() {
        let cluster = connect(None, KUBECONFIG).unwrap();
        assert_eq!(cluster.url(), "https://127.0.0.1:6443/");
        assert_eq!(
            (cluster.namespace_or(None).as_str(), cluster.namespace_or(Some("b")).as_str()),
            ("team-a", "b")
        );
        let empty = KUBECONFIG.replace("namespace: team-a", "namespace: ''");
        assert_eq!(connect(None, &empty).unwrap().namespace_or(None), "default");
        assert_eq!(connect(Some("two"), KUBECONFIG).unwrap().namespace_or(None), "default");
        let all = Namespaces { namespace: None, all_namespaces: true };
        assert_eq!(
            (cluster.scope(&all), cluster.scope(&Namespaces::default()).namespace()),
            (Scope::All, Some("team-a"))
        );
    }

    #[test]
    fn the_token_is_the_one_that_requests_carry() {
        let token = |text: &str| {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("config");
            std::fs::write(&file, text).unwrap();
            let args = ConnectArgs { kubeconfig: Some(file), ..ConnectArgs::default() };
            block_on(async { bearer_token(&args).await }).unwrap()
        };
        assert_eq!(token(KUBECONFIG).as_deref(), Some("t"));
        assert_eq!(token(&KUBECONFIG.replace("token: t", "username: u, password: p")), None);
        assert_eq!(token(&KUBECONFIG.replace("user: {token: t}", "user: {}")), None);
    }

    #[test]
    fn who_acts_as_another_keeps_doing_so_and_no_token_says_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        std::fs::write(&file, KUBECONFIG.replace("{token: t}", "{token: t, as: somebody}")).unwrap();
        let token = Some("other".to_owned());
        let args = ConnectArgs { kubeconfig: Some(file), token, ..ConnectArgs::default() };
        let config = configuration(&args).unwrap();
        assert_eq!(config.auth_info.impersonate.as_deref(), Some("somebody"));
        let error = block_on(async { bearer_token(&args).await }).unwrap_err().to_string();
        assert!(error.contains("--as"), "{error}");
    }

    #[test]
    fn a_time_for_requests_is_written_as_for_kubectl() {
        let year = 365 * 24 * 3600 * 1000;
        for (text, milliseconds) in [
            ("30", 30_000),
            ("30s", 30_000),
            ("1m30s", 90_000),
            ("500ms", 1_000),
            ("2h", 7_200_000),
            ("0", year),
            ("0s", year),
        ] {
            assert_eq!(request_timeout(text).unwrap().as_millis(), milliseconds, "{text}");
        }
        for wrong in ["", "soon", "1.5", "30 s", "-1s", "-1", "s", "10d"] {
            assert!(request_timeout(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_context_that_is_none_and_a_file_that_is_none_are_said() {
        let error = connect(Some("three"), KUBECONFIG).err().unwrap().to_string();
        assert!(error.starts_with("kubeconfig: ") && error.contains("three"), "{error}");
        let error = connect(None, "- 1").err().unwrap().to_string();
        assert!(error.starts_with("kubeconfig: "), "{error}");
    }
}
