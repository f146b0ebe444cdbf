// SPDX-License-Identifier: Apache-2.0
//! What an API server and its administrator need to trust each other, as files.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    PKCS_ECDSA_P256_SHA256,
};
use serde_json::json;

/// Who the server knows: the one that plays everybody else, and two that are tried.
pub(super) const USERS: [&str; 3] = ["admin", "replica-a", "replica-b"];

/// Writes ca.crt, server.{crt,key} for a server at this address, the same for each user, and accounts.{key,pub}, by which
/// service accounts' tokens are signed.
pub(super) fn write(folder: &Path, address: IpAddr) -> Result<()> {
    let key = key()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name
        .push(DnType::CommonName, "test cluster");
    save(folder, "ca.crt", &ca.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(ca, key);

    let mut names = ["127.0.0.1", "localhost", "kubernetes.default.svc"]
        .map(str::to_owned)
        .to_vec();
    names.push(address.to_string());
    let mut server = CertificateParams::new(names)?;
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    sign(folder, "server", &server, &issuer)?;

    for user in USERS {
        let mut parameters = CertificateParams::new(Vec::new())?;
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let name = &mut parameters.distinguished_name;
        name.push(DnType::CommonName, user);
        // Whoever is of this group may do anything, without any role.
        name.push(DnType::OrganizationName, "system:masters");
        sign(folder, user, &parameters, &issuer)?;
    }
    let accounts = self::key()?;
    save(folder, "accounts.key", &accounts.serialize_pem())?;
    save(folder, "accounts.pub", &accounts.public_key_pem())
}

/// A user's way in, as a file.
pub(super) fn kubeconfig(folder: &Path, user: &str, server: &str) -> serde_json::Value {
    let file = |name: &str| folder.join(name).display().to_string();
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": file("ca.crt")}}],
        "users": [{"name": user, "user": {
            "client-certificate": file(&format!("{user}.crt")), "client-key": file(&format!("{user}.key")),
        }}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
    })
}

/// The way in of whoever holds a token, which is read from a file again and again.
pub(super) fn kubeconfig_by_token(folder: &Path, server: &str, token: &Path) -> serde_json::Value {
    let mut file = kubeconfig(folder, "account", server);
    file["users"][0]["user"] = json!({ "tokenFile": token });
    file
}

fn key() -> Result<KeyPair> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).context("cannot make a key")
}

fn sign(
    folder: &Path,
    name: &str,
    parameters: &CertificateParams,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<()> {
    let key = key()?;
    let certificate = parameters.signed_by(&key, issuer)?;
    save(folder, &format!("{name}.crt"), &certificate.pem())?;
    save(folder, &format!("{name}.key"), &key.serialize_pem())
}

fn save(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
