// SPDX-License-Identifier: Apache-2.0
//! The demands, one after the other.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use identity::WorkloadCertificate;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::{CustomExtension, SanType};
use serde_json::Value;
use spiffe::SpiffeId;

use super::Case;
use super::ground::{Ground, Node};
use super::question::{Question, VALIDITY};
use crate::peers::signing_request_of;

/// `{"alg":"none","typ":"JWT"}`.
const UNSIGNED: &str = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
/// Clocks of the authority and of whoever asks may differ by this.
const SKEW: Duration = Duration::from_secs(120);
/// That a certificate may sign others, as a request would ask for it.
const BASIC_CONSTRAINTS: &[u64] = &[2, 5, 29, 19];
const IS_AUTHORITY: &[u8] = &[0x30, 0x03, 0x01, 0x01, 0xff];

/// A proxy of a node, and an account that runs there.
struct Scene<'a> {
    ground: &'a Ground<'a>,
    proxy: Value,
    token: String,
    here: SpiffeId,
}

impl Scene<'_> {
    /// The question that is answered with a certificate.
    fn proper(&self) -> Result<Question> {
        Question::of(self.ground.authority, &self.token, &self.here)
    }

    async fn refused(&self, question: Question) -> Result<()> {
        question.is_refused(self.ground.authority).await
    }
}

/// All demands, by name and in words.
pub(super) const DEMANDS: [(&str, &str); 21] = [
    (
        "own-node",
        "a proxy gets the certificate of an account that runs on its node",
    ),
    (
        "names-of-request",
        "what else a request asks for is not in the certificate",
    ),
    (
        "foreign-node",
        "an account that runs on another node only is that node's proxy's alone",
    ),
    ("no-pod", "an account without a pod gets none"),
    (
        "succeeded-pod",
        "an account whose pod has succeeded gets no more",
    ),
    ("failed-pod", "an account whose pod has failed gets no more"),
    ("deleted-pod", "an account whose pod is gone gets no more"),
    ("no-token", "nobody gets anything without a token"),
    ("forged-signature", "a token with another signature is none"),
    ("forged-key", "a token that somebody else signed is none"),
    (
        "unsigned",
        "a token that says that it is not signed is none",
    ),
    (
        "foreign-audience",
        "a token that is meant for others is none",
    ),
    (
        "not-a-proxy",
        "an account that is no proxy's asks for nobody, not even for itself",
    ),
    (
        "own-certificate",
        "whoever asks for itself gets its own, whatever its request names",
    ),
    ("no-cluster", "a proxy says which cluster it asks in"),
    (
        "foreign-cluster",
        "in a cluster that is not known nobody gets anything",
    ),
    (
        "foreign-trust-domain",
        "identities of other trust domains are others' to certify",
    ),
    ("no-identity", "what is no identity is not certified"),
    (
        "altered-request",
        "a request that its key has not signed is refused",
    ),
    (
        "ended-proxy",
        "a proxy whose pod has ended gets nothing more",
    ),
    (
        "other-uid",
        "a proxy's token dies with its pod, also where another of its name comes",
    ),
];

/// Tries those that are wanted.
pub(super) async fn tried(ground: &Ground<'_>, wanted: impl Fn(&str) -> bool) -> Result<Vec<Case>> {
    ground.account("here").await?;
    ground.pod("here", Node::One).await?;
    let proxy = ground.proxy("one", Node::One).await?;
    let scene = Scene {
        ground,
        token: ground.token(&proxy).await?,
        proxy,
        here: ground.identity("here")?,
    };
    let mut cases = Vec::new();
    for (name, demand) in DEMANDS.into_iter().filter(|(name, _)| wanted(name)) {
        let tried = meets(&scene, name).await;
        let fault = tried.err().map(|error| format!("{error:#}"));
        cases.push(Case {
            name,
            demand,
            fault,
        });
    }
    Ok(cases)
}

async fn meets(scene: &Scene<'_>, demand: &str) -> Result<()> {
    let with_token = async |token: Option<String>| scene.refused(scene.proper()?.by(token)).await;
    let in_cluster = async |id: &str| scene.refused(scene.proper()?.of_cluster(id)).await;
    let token = &scene.token;
    match demand {
        "own-node" => own_node(scene).await,
        "names-of-request" => names_of_request(scene).await,
        "foreign-node" => foreign_node(scene).await,
        "no-pod" => no_pod(scene).await,
        "succeeded-pod" => ended(scene, "job", "Succeeded").await,
        "failed-pod" => ended(scene, "broken", "Failed").await,
        "deleted-pod" => deleted(scene).await,
        "no-token" => with_token(None).await,
        "forged-signature" => with_token(Some(altered(token)?)).await,
        "forged-key" => with_token(Some(resigned(token)?)).await,
        "unsigned" => with_token(Some(unsigned(token)?)).await,
        "foreign-audience" => {
            let admin = &scene.ground.admin;
            with_token(Some(admin.token(&scene.proxy, "ca-conformance").await?)).await
        }
        "not-a-proxy" => not_a_proxy(scene).await,
        "own-certificate" => own_certificate(scene).await,
        "no-cluster" => in_cluster("").await,
        "foreign-cluster" => in_cluster("ca-conformance").await,
        "foreign-trust-domain" => foreign_trust_domain(scene).await,
        "no-identity" => no_identity(scene).await,
        "altered-request" => altered_request(scene).await,
        "ended-proxy" => ended_proxy(scene).await,
        "other-uid" => other_uid(scene).await,
        other => bail!("{other} is tried by nobody"),
    }
}

async fn own_node(scene: &Scene<'_>) -> Result<()> {
    let authority = scene.ground.authority;
    let issued = scene.proper()?.is_issued(authority).await?;
    // Leaf, names, key, chain, roots: as a proxy reads it.
    WorkloadCertificate::from_pem(Some(&scene.here), &issued.chain, &issued.key)
        .context("no proxy can use it")?;
    let left = issued.leaf.seconds_left.unwrap_or_default();
    let longest = VALIDITY + i64::try_from(SKEW.as_secs())?;
    ensure!(
        (1..=longest).contains(&left),
        "it was to last {VALIDITY} s and lasts {left}"
    );
    let roots = std::fs::read_to_string(&authority.roots)?;
    let bundle = issued.chain.last().context("it came without roots")?;
    let known = |pem: &str| -> Result<Vec<Vec<u8>>> {
        let blocks = x509_parser::pem::Pem::iter_from_buffer(pem.as_bytes());
        Ok(blocks
            .map(|block| block.map(|block| block.contents))
            .collect::<Result<_, _>>()?)
    };
    let given = known(&roots)?;
    ensure!(
        known(bundle)?.iter().any(|root| given.contains(root)),
        "it came with none of the roots of {}",
        authority.roots.display()
    );
    Ok(())
}

async fn names_of_request(scene: &Scene<'_>) -> Result<()> {
    let other = scene.ground.identity("other")?.to_string();
    let more: Vec<SanType> = vec![
        SanType::URI(other.as_str().try_into()?),
        SanType::DnsName("istiod.istio-system.svc".try_into()?),
    ];
    let (csr, key) = signing_request_of(&scene.here, |parameters| {
        parameters.subject_alt_names.extend(more);
        let wanted = CustomExtension::from_oid_content(BASIC_CONSTRAINTS, IS_AUTHORITY.to_vec());
        parameters.custom_extensions.push(wanted);
    })?;
    let question = scene.proper()?.signing(csr, key);
    let leaf = question.is_issued(scene.ground.authority).await?.leaf;
    ensure!(!leaf.signs, "it may sign others");
    let own = scene.here.to_string();
    ensure!(leaf.names == [own], "it names {:?}", leaf.names);
    Ok(())
}

async fn foreign_node(scene: &Scene<'_>) -> Result<()> {
    let Scene { ground, .. } = scene;
    ground.account("there").await?;
    ground.pod("there", Node::Other).await?;
    let proxy = ground.proxy("other", Node::Other).await?;
    let there = ground.identity("there")?;
    let token = ground.token(&proxy).await?;
    let question = Question::of(ground.authority, &token, &there)?;
    let known = question.is_issued(ground.authority).await;
    known.context("for its own node's proxy it")?;
    scene
        .refused(question.by(Some(scene.token.clone())))
        .await?;
    // And the other way round.
    scene.refused(scene.proper()?.by(Some(token))).await
}

async fn no_pod(scene: &Scene<'_>) -> Result<()> {
    scene.ground.account("idle").await?;
    let idle = scene.ground.identity("idle")?.to_string();
    scene.refused(scene.proper()?.naming(Some(&idle))).await
}

/// A pod that had a certificate ends.
async fn ended(scene: &Scene<'_>, account: &str, phase: &str) -> Result<()> {
    let Scene { ground, token, .. } = scene;
    ground.account(account).await?;
    let pod = ground.pod(account, Node::One).await?;
    let question = Question::of(ground.authority, token, &ground.identity(account)?)?;
    let before = question.is_issued(ground.authority).await;
    before.context("while it ran it")?;
    ground.end(&pod, phase).await?;
    question.becomes_refused(ground.authority).await
}

async fn deleted(scene: &Scene<'_>) -> Result<()> {
    let Scene { ground, token, .. } = scene;
    ground.account("gone").await?;
    let pod = ground.pod("gone", Node::One).await?;
    let question = Question::of(ground.authority, token, &ground.identity("gone")?)?;
    let before = question.is_issued(ground.authority).await;
    before.context("while it ran it")?;
    ground.admin.delete(&pod).await?;
    question.becomes_refused(ground.authority).await
}

async fn not_a_proxy(scene: &Scene<'_>) -> Result<()> {
    let Scene { ground, here, .. } = scene;
    ground.account("plain").await?;
    let pod = ground.pod("plain", Node::One).await?;
    let token = ground.token(&pod).await?;
    let itself = Question::of(ground.authority, &token, &ground.identity("plain")?)?;
    // That the authority knows the pod shows where it asks for itself.
    let known = itself
        .clone()
        .naming(None)
        .is_issued(ground.authority)
        .await;
    known.context("for itself it")?;
    scene.refused(itself.clone()).await?;
    scene.refused(itself.naming(Some(&here.to_string()))).await
}

async fn own_certificate(scene: &Scene<'_>) -> Result<()> {
    let Scene { ground, here, .. } = scene;
    ground.account("own").await?;
    let pod = ground.pod("own", Node::One).await?;
    let token = ground.token(&pod).await?;
    // Its request names another, who runs on the same node.
    let question = Question::of(ground.authority, &token, here)?.naming(None);
    let issued = question.is_issued(ground.authority).await?;
    let own = ground.identity("own")?.to_string();
    ensure!(
        issued.leaf.names == [own],
        "it names {:?}",
        issued.leaf.names
    );
    Ok(())
}

async fn foreign_trust_domain(scene: &Scene<'_>) -> Result<()> {
    let own = &scene.ground.authority.trust_domain;
    let foreign = scene.here.to_string();
    let foreign = foreign.replacen(own.as_str(), "ca-conformance", 1);
    scene.refused(scene.proper()?.naming(Some(&foreign))).await
}

async fn no_identity(scene: &Scene<'_>) -> Result<()> {
    for wrong in ["", "here", "spiffe://cluster.local/ns/shop"] {
        let question = scene.proper()?.naming(Some(wrong));
        let refused = scene.refused(question).await;
        refused.with_context(|| format!("{wrong:?}"))?;
    }
    Ok(())
}

async fn altered_request(scene: &Scene<'_>) -> Result<()> {
    let (csr, key) = signing_request_of(&scene.here, |_| {})?;
    // Within the signature, which comes last.
    let end = csr
        .find("\n-----END")
        .context("the own request is no PEM")?;
    let csr = with_another_letter(&csr, end - 20);
    let question = scene.proper()?.signing(csr, key);
    scene.refused(question).await
}

async fn ended_proxy(scene: &Scene<'_>) -> Result<()> {
    let Scene { ground, here, .. } = scene;
    let proxy = ground.proxy("ends", Node::One).await?;
    let token = ground.token(&proxy).await?;
    let question = Question::of(ground.authority, &token, here)?;
    let before = question.is_issued(ground.authority).await;
    before.context("while it ran it")?;
    ground.end(&proxy, "Failed").await?;
    question.becomes_refused(ground.authority).await
}

async fn other_uid(scene: &Scene<'_>) -> Result<()> {
    let Scene { ground, here, .. } = scene;
    let proxy = ground.proxy("again", Node::One).await?;
    let token = ground.token(&proxy).await?;
    let question = Question::of(ground.authority, &token, here)?;
    let before = question.is_issued(ground.authority).await;
    before.context("while it ran it")?;
    ground.admin.delete(&proxy).await?;
    ground.admin.put(&proxy).await?;
    let renewed = ground.token(&proxy).await?;
    let after = question
        .clone()
        .by(Some(renewed))
        .is_issued(ground.authority)
        .await;
    after.context("for the new one of its name it")?;
    scene.refused(question).await
}

/// A token whose signature is another.
fn altered(token: &str) -> Result<String> {
    let signature = token.rfind('.').context("the token is no JWT")? + 1;
    ensure!(token.len() > signature + 20, "the token has no signature");
    Ok(with_another_letter(token, signature + 10))
}

fn with_another_letter(text: &str, at: usize) -> String {
    let other = if text[at..].starts_with('A') {
        "B"
    } else {
        "A"
    };
    format!("{}{other}{}", &text[..at], &text[at + 1..])
}

/// The same claims, signed by whoever can make a key.
fn resigned(token: &str) -> Result<String> {
    let read = jsonwebtoken::dangerous::insecure_decode::<Value>(token);
    let read = read.context("the token can't be read")?;
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes())?;
    let mut forged = Header::new(Algorithm::ES256);
    // It says that it is by the key that is known.
    forged.kid = read.header.kid;
    jsonwebtoken::encode(&forged, &read.claims, &key).context("the forged token")
}

/// The same claims, signed by nobody.
fn unsigned(token: &str) -> Result<String> {
    let claims = token.split('.').nth(1).context("the token is no JWT")?;
    Ok(format!("{UNSIGNED}.{claims}."))
}
