//! Where a namespace wants to be told: its Secret `andreas-notifications`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use andreas_api::resource_like;
use andreas_api::slim::own_metadata;
use andreas_runtime::watch::{Index, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lettre::message::Mailbox;
use lettre::transport::smtp::AsyncSmtpTransportBuilder;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{AsyncSmtpTransport, Tokio1Executor};
use reqwest::Url;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;

use super::notices::Notice;

/// The name of the Secret.
pub const SECRET: &str = "andreas-notifications";
/// Time limit of one delivery.
const WITHIN: Duration = Duration::from_secs(10);
/// Most characters of a template, and of an address.
const MAX_VALUE: usize = 2_000;
/// Most receivers of a mail.
const MAX_RECEIVERS: usize = 20;
/// What a message is without a template.
const TEMPLATE: &str = "{namespace}/{name} {text}";
/// What a template may name.
const PLACEHOLDERS: [&str; 5] = ["event", "namespace", "name", "deadline", "text"];
/// Every key.
const KEYS: [&str; 9] =
    ["webhook", "webhookToken", "slack", "smtp", "from", "to", "events", "template", "ca.crt"];

/// A Secret as it is watched.
#[derive(Clone, Debug, Deserialize)]
pub struct SlimSecret {
    #[serde(deserialize_with = "own_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    data: Option<BTreeMap<String, ByteString>>,
}
resource_like!(SlimSecret, Secret);

/// Hosts that may be written to: `hooks.slack.com`, or `*.example.com` for all names below one.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// These hosts.
    pub fn new(hosts: &[String]) -> Self {
        Self(hosts.iter().map(|host| host.to_ascii_lowercase()).collect())
    }

    fn allow(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        self.0.iter().any(|one| match one.strip_prefix('*') {
            Some(end) => end.starts_with('.') && host.len() > end.len() && host.ends_with(end),
            None => *one == host,
        })
    }
}

/// One way to notify people.
#[derive(Clone, Debug)]
pub enum Channel {
    /// A CloudEvent by POST.
    Webhook { client: reqwest::Client, url: Url, token: Option<String> },
    /// An incoming webhook of Slack, and of what speaks as it does.
    Slack { client: reqwest::Client, url: Url },
    /// A mail.
    Mail { server: AsyncSmtpTransport<Tokio1Executor>, from: Mailbox, to: Vec<Mailbox> },
}

impl Channel {
    /// Its key in the Secret.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Webhook { .. } => "webhook",
            Self::Slack { .. } => "slack",
            Self::Mail { .. } => "smtp",
        }
    }
}

/// What a namespace asked for.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// The Secret's identity.
    pub uid: String,
    /// What was before is told to nobody.
    pub since: Timestamp,
    /// What is told.
    pub notices: Vec<Notice>,
    /// The words.
    pub template: String,
    /// Where it is sent.
    pub channels: Vec<Channel>,
}

/// A Secret that cannot be used as it is: the key and what is wrong. Never its value.
pub type Invalid = String;

/// What each namespace asked for.
#[derive(Debug, Default)]
pub struct Book {
    hosts: Hosts,
    by_namespace: BTreeMap<String, Arc<Addresses>>,
    /// Secrets that cannot be used, with their UID, to be told once.
    invalid: Vec<(String, String, Invalid)>,
}

impl Book {
    /// Nothing asked for yet.
    pub fn new(hosts: Hosts) -> Self {
        Self { hosts, ..Self::default() }
    }

    /// What each namespace asked for.
    pub fn all(&self) -> BTreeMap<String, Arc<Addresses>> {
        self.by_namespace.clone()
    }

    /// What a namespace asked for.
    pub fn of(&self, namespace: &str) -> Option<Arc<Addresses>> {
        self.by_namespace.get(namespace).cloned()
    }

    /// Namespace, UID and fault of Secrets that cannot be used, since the last call.
    pub fn take_invalid(&mut self) -> Vec<(String, String, Invalid)> {
        std::mem::take(&mut self.invalid)
    }
}

impl Index<SlimSecret> for Book {
    fn apply(&mut self, secret: SlimSecret) {
        let key = ObjectKey::of(secret.metadata.namespace.as_deref(), secret.metadata.name.as_deref());
        if key.name != SECRET {
            return;
        }
        match read(&secret, &self.hosts) {
            Ok(addresses) => {
                self.by_namespace.insert(key.namespace, Arc::new(addresses));
            }
            Err(fault) => {
                self.by_namespace.remove(&key.namespace);
                self.invalid.push((key.namespace, secret.metadata.uid.unwrap_or_default(), fault));
            }
        }
    }

    fn delete(&mut self, key: &ObjectKey, _: Option<SlimSecret>) {
        self.by_namespace.remove(&key.namespace);
    }

    fn reset(&mut self, present: &HashSet<ObjectKey>) {
        self.by_namespace.retain(|namespace, _| {
            present.iter().any(|key| key.namespace == *namespace && key.name == SECRET)
        });
    }
}

/// What a Secret asks for.
///
/// # Errors
/// The first key that cannot be used.
pub fn read(secret: &SlimSecret, hosts: &Hosts) -> Result<Addresses, Invalid> {
    let data = secret.data.clone().unwrap_or_default();
    if let Some(other) = data.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!("{other}: no such key; these are: {}", KEYS.join(", ")));
    }
    let text = |key: &str| -> Result<Option<String>, Invalid> {
        let Some(bytes) = data.get(key) else { return Ok(None) };
        let text = std::str::from_utf8(&bytes.0).map_err(|_| format!("{key}: not UTF-8"))?.trim();
        // Certificates are longer.
        if key != "ca.crt" && text.chars().count() > MAX_VALUE {
            return Err(format!("{key}: longer than {MAX_VALUE} characters"));
        }
        Ok((!text.is_empty()).then(|| text.to_owned()))
    };
    let authorities = match text("ca.crt")? {
        Some(pem) => authorities(&pem)?,
        None => Vec::new(),
    };
    let allowed = |key: &str, url: &Url| match url.host_str() {
        Some(host) if hosts.allow(host) => Ok(()),
        Some(host) => Err(format!("{key}: the administrator does not allow the host {host}")),
        None => Err(format!("{key}: no host")),
    };
    let https = |key: &str| -> Result<Option<Url>, Invalid> {
        let Some(text) = text(key)? else { return Ok(None) };
        let url = Url::parse(&text).map_err(|error| format!("{key}: {error}"))?;
        if url.scheme() != "https" {
            return Err(format!("{key}: must begin with https://"));
        }
        allowed(key, &url)?;
        Ok(Some(url))
    };
    let mut channels = Vec::new();
    let (webhook, slack) = (https("webhook")?, https("slack")?);
    if webhook.is_some() || slack.is_some() {
        let client = http_client(&authorities)?;
        if let Some(url) = webhook {
            channels.push(Channel::Webhook { client: client.clone(), url, token: text("webhookToken")? });
        }
        if let Some(url) = slack {
            channels.push(Channel::Slack { client, url });
        }
    }
    if let Some(text_of_url) = text("smtp")? {
        let url = Url::parse(&text_of_url).map_err(|error| format!("smtp: {error}"))?;
        allowed("smtp", &url)?;
        let mailbox =
            |key: &str, text: &str| text.trim().parse::<Mailbox>().map_err(|error| format!("{key}: {error}"));
        let from = mailbox("from", &text("from")?.ok_or("from: missing beside smtp")?)?;
        let to = text("to")?.ok_or("to: missing beside smtp")?;
        let to = to.split(',').map(|one| mailbox("to", one)).collect::<Result<Vec<_>, _>>()?;
        if to.len() > MAX_RECEIVERS {
            return Err(format!("to: more than {MAX_RECEIVERS} addresses"));
        }
        channels.push(Channel::Mail { server: mail_server(&url, &authorities, &from)?, from, to });
    }
    if channels.is_empty() {
        return Err("none of webhook, slack and smtp is there".to_owned());
    }
    let template = text("template")?.unwrap_or_else(|| TEMPLATE.to_owned());
    check_template(&template)?;
    let notices = match text("events")? {
        Some(names) => names
            .split(',')
            .map(|name| {
                let known = || Notice::ALL.map(Notice::as_str).join(", ");
                Notice::named(name.trim()).ok_or_else(|| format!("events: {name} is none of {}", known()))
            })
            .collect::<Result<Vec<_>, _>>()?,
        None => Notice::ALL.to_vec(),
    };
    let since = secret.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |at| at.0);
    let uid = secret.metadata.uid.clone().unwrap_or_default();
    Ok(Addresses { uid, since, notices, template, channels })
}

fn check_template(template: &str) -> Result<(), Invalid> {
    for (at, _) in template.match_indices('{') {
        let name = template[at + 1..].split('}').next().unwrap_or_default();
        if !PLACEHOLDERS.contains(&name) {
            let known = PLACEHOLDERS.map(|name| format!("{{{name}}}")).join(", ");
            return Err(format!("template: {{{name}}} is none of {known}"));
        }
    }
    Ok(())
}

fn authorities(pem: &str) -> Result<Vec<CertificateDer<'static>>, Invalid> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("ca.crt: {error}"))
        .and_then(|all| if all.is_empty() { Err("ca.crt: no certificate".to_owned()) } else { Ok(all) })
}

/// A client that trusts the authorities of the Web and these, follows no redirect, and uses the proxy of the environment.
fn http_client(authorities: &[CertificateDer<'static>]) -> Result<reqwest::Client, Invalid> {
    let mut roots = rustls::RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    for authority in authorities {
        roots.add(authority.clone()).map_err(|error| format!("ca.crt: {error}"))?;
    }
    let tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        // Another host than the one that was allowed.
        .redirect(reqwest::redirect::Policy::none())
        .timeout(WITHIN)
        .user_agent(concat!("andreas-operator/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| format!("no HTTP client: {error}"))
}

fn mail_server(
    url: &Url,
    authorities: &[CertificateDer<'static>],
    from: &Mailbox,
) -> Result<AsyncSmtpTransport<Tokio1Executor>, Invalid> {
    let fault = |error: lettre::transport::smtp::Error| format!("smtp: {error}");
    let connection = || -> Result<AsyncSmtpTransportBuilder, Invalid> {
        let server = AsyncSmtpTransport::<Tokio1Executor>::from_url(url.as_str()).map_err(fault)?;
        let server = server.timeout(Some(WITHIN));
        let domain = from.email.domain();
        // The name of a pod, or 127.0.0.1, is refused by some relays. A path of the URL names another.
        Ok(if url.path().len() > 1 || !domain.is_ascii() {
            server
        } else {
            server.hello_name(ClientId::Domain(domain.to_owned()))
        })
    };
    let encrypted = match (url.scheme(), url.query()) {
        ("smtps", None) => Tls::Wrapper as fn(TlsParameters) -> Tls,
        ("smtp", Some("tls=required")) => Tls::Required as fn(TlsParameters) -> Tls,
        ("smtp", None) if url.password().is_none() && url.username().is_empty() => {
            return Ok(connection()?.build());
        }
        ("smtp", None) => return Err("smtp: a password needs smtps://, or ?tls=required".to_owned()),
        _ => return Err("smtp: must be smtps://HOST, smtp://HOST?tls=required or smtp://HOST".to_owned()),
    };
    let mut tls = TlsParameters::builder(url.host_str().unwrap_or_default().to_owned());
    for authority in authorities {
        tls = tls.add_root_certificate(Certificate::from_der(authority.to_vec()).map_err(fault)?);
    }
    let tls = tls.build_rustls().map_err(fault)?;
    Ok(connection()?.tls(encrypted(tls)).build())
}
