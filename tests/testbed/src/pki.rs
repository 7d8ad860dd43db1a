//! The test bed's own certificate authority and every key made from it.
//!
//! ECDSA P-256 throughout: quick to make, and accepted by every component, also for service-account tokens. Keys are kept
//! in the `pki` folder (mode 0600), so a test bed on a kept folder starts again with the same identities.

use std::fs;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};

/// Names under which the API server is reached: from the machine and, when something forwards, from pods.
const API_SERVER_NAMES: [&str; 7] = [
    "127.0.0.1",
    "10.96.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// A key or certificate could not be made, read or written.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// Making a key or certificate failed.
    #[error("cannot make the certificate of {subject}")]
    Certificate {
        /// Whom it was for.
        subject: String,
        /// Why.
        source: rcgen::Error,
    },
    /// A file could not be read or written.
    #[error("cannot read or write {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A certificate and its private key, as PEM files and text.
#[derive(Debug, Clone)]
pub struct KeyAndCertificate {
    /// The certificate's file.
    pub certificate_file: PathBuf,
    /// The private key's file (PKCS #8).
    pub key_file: PathBuf,
    /// The certificate, PEM.
    pub certificate: String,
    /// The private key, PEM.
    pub key: String,
}

/// The certificate authority and its folder.
pub struct Pki {
    folder: PathBuf,
    ca: Issuer<'static, KeyPair>,
    ca_certificate: String,
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Pki {
    /// Loads the authority kept in a folder, or makes one, with the service-account key pair beside it.
    pub fn open(folder: &Path) -> Result<Self, PkiError> {
        fs::create_dir_all(folder).map_err(|source| PkiError::File { path: folder.to_owned(), source })?;
        let subject = "andreas-testbed";
        let key = load_or_make_key(&folder.join("ca.key"), subject)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let certificate_file = folder.join("ca.crt");
        let ca_certificate = match fs::read_to_string(&certificate_file) {
            Ok(kept) => kept,
            Err(_) => {
                let made = params.self_signed(&key).map_err(certificate_error(subject))?.pem();
                write(&certificate_file, &made)?;
                made
            }
        };
        let service_accounts = load_or_make_key(&folder.join("sa.key"), "service accounts")?;
        write(&folder.join("sa.pub"), &service_accounts.public_key_pem())?;
        Ok(Self { folder: folder.to_owned(), ca: Issuer::new(params, key), ca_certificate })
    }

    /// The authority's certificate, PEM.
    pub fn ca(&self) -> &str {
        &self.ca_certificate
    }

    /// The file of the authority's certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// The key that signs service-account tokens, private and public half.
    pub fn service_account_key_files(&self) -> (PathBuf, PathBuf) {
        (self.folder.join("sa.key"), self.folder.join("sa.pub"))
    }

    /// The API server's serving certificate, for its usual names and this address.
    pub fn api_server(&self, address: Ipv4Addr) -> Result<KeyAndCertificate, PkiError> {
        let address = address.to_string();
        let mut names = API_SERVER_NAMES.to_vec();
        if !names.contains(&&*address) {
            names.push(&address);
        }
        self.server("kube-apiserver", &names)
    }

    /// A serving certificate for whatever stands before the API server under its names.
    pub(crate) fn server_in_place_of_the_api_server(
        &self,
        name: &str,
    ) -> Result<KeyAndCertificate, PkiError> {
        self.server(name, &API_SERVER_NAMES)
    }

    /// A serving certificate for these DNS names and addresses; `name` is the files' name and the common name.
    pub fn server(
        &self,
        name: &str,
        dns_names_and_addresses: &[&str],
    ) -> Result<KeyAndCertificate, PkiError> {
        let names: Vec<String> = dns_names_and_addresses.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).map_err(certificate_error(name))?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(name, name, None, params)
    }

    /// A client certificate: `user` is the common name, `group` the organisation, as Kubernetes reads them.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<KeyAndCertificate, PkiError> {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&file_name(user), user, group, params)
    }

    fn sign(
        &self,
        file: &str,
        common_name: &str,
        organisation: Option<&str>,
        mut params: CertificateParams,
    ) -> Result<KeyAndCertificate, PkiError> {
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        if let Some(organisation) = organisation {
            params.distinguished_name.push(DnType::OrganizationName, organisation);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Python 3.13 and later verify strictly.
        params.use_authority_key_identifier_extension = true;
        let key = make_key(common_name)?;
        let certificate = params.signed_by(&key, &self.ca).map_err(certificate_error(common_name))?.pem();
        let made = KeyAndCertificate {
            certificate_file: self.folder.join(format!("{file}.crt")),
            key_file: self.folder.join(format!("{file}.key")),
            certificate,
            key: key.serialize_pem(),
        };
        write(&made.certificate_file, &made.certificate)?;
        write(&made.key_file, &made.key)?;
        Ok(made)
    }
}

/// A user's name as a file name: `system:node:gpu-1` becomes `system-node-gpu-1`.
pub(crate) fn file_name(user: &str) -> String {
    user.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}

fn certificate_error(subject: &str) -> impl FnOnce(rcgen::Error) -> PkiError + use<> {
    let subject = subject.to_owned();
    move |source| PkiError::Certificate { subject, source }
}

fn make_key(subject: &str) -> Result<KeyPair, PkiError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(certificate_error(subject))
}

fn load_or_make_key(path: &Path, subject: &str) -> Result<KeyPair, PkiError> {
    if let Ok(kept) = fs::read_to_string(path) {
        return KeyPair::from_pem(&kept).map_err(certificate_error(subject));
    }
    let key = make_key(subject)?;
    write(path, &key.serialize_pem())?;
    Ok(key)
}

/// Writes a file that only this user may read.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), PkiError> {
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|source| PkiError::File { path: path.to_owned(), source })
}
