//! The cluster's own CA: made by the first server, kept in the store, known to agents by its hash. It signs certificates of servers and
//! nothing else, a fresh one at each start of a server.

use anyhow::Context;
use belfry_control::{ServerIdentity, Snapshot};
use belfry_core::Timestamp;
use belfry_core::join::CaHash;
use belfry_proto::SERVER_NAME;
use belfry_store::Store;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use sha2::{Digest, Sha256};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

/// Certificate and key, one PEM after the other.
const SETTING: &str = "ca";

pub struct Ca {
    /// PEM.
    pub certificate: String,
    pub hash: CaHash,
    key: KeyPair,
}

impl Ca {
    /// The one that all servers of the store share; the first to start makes it.
    pub async fn of_cluster(store: &Store, now: Timestamp) -> anyhow::Result<Self> {
        let kept = match store.setting(SETTING).await? {
            Some(kept) => kept,
            None => store.setting_or(SETTING, &fresh()?, now).await?,
        };
        Self::read(&kept).context("the CA in the store cannot be read")
    }

    pub fn of_snapshot(snapshot: &Snapshot) -> anyhow::Result<Self> {
        let kept = snapshot.settings.get(SETTING).context("the snapshot has no CA")?;
        Self::read(kept).context("the CA in the snapshot cannot be read")
    }

    fn read(kept: &str) -> anyhow::Result<Self> {
        let (certificate, key) =
            kept.find("-----BEGIN PRIVATE KEY-----").map(|at| kept.split_at(at)).context("its key is missing")?;
        let der = CertificateDer::from_pem_slice(certificate.as_bytes())?;
        let hash = CaHash(Sha256::digest(der).into());
        Ok(Self { certificate: certificate.to_owned(), hash, key: KeyPair::from_pem(key)? })
    }

    /// A certificate for a server under the name that agents ask for, and under `names`, by which people and other servers reach it.
    pub fn issue(&self, names: &[String]) -> anyhow::Result<ServerIdentity> {
        let key = KeyPair::generate()?;
        let mut all = vec![SERVER_NAME.to_owned()];
        all.extend_from_slice(names);
        let mut params = CertificateParams::new(all)?;
        params.distinguished_name = name("Belfry server");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        dated(&mut params);
        let certificate = params.signed_by(&key, &Issuer::new(ca_params(), &self.key))?;
        Ok(ServerIdentity { chain: certificate.pem() + &self.certificate, key: key.serialize_pem() })
    }
}

fn fresh() -> anyhow::Result<String> {
    let key = KeyPair::generate()?;
    Ok(ca_params().self_signed(&key)?.pem() + &key.serialize_pem())
}

/// What a certificate is signed with is made from these again at each start: the name must never change.
fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = name("Belfry cluster CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    dated(&mut params);
    params
}

/// Wide on both sides: a wrong clock is told as such elsewhere, and nothing is revoked by waiting. A node is let in by its credential.
fn dated(params: &mut CertificateParams) {
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2120, 1, 1));
}

fn name(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_signs_is_accepted_by_who_knows_only_the_ca() {
        use tokio_rustls::rustls::crypto::aws_lc_rs;
        use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};
        use tokio_rustls::rustls::{RootCertStore, client::WebPkiServerVerifier, client::danger::ServerCertVerifier};
        let ca = Ca::read(&fresh().unwrap()).unwrap();
        let identity = ca.issue(&["belfry1.example".to_owned(), "10.0.0.1".to_owned()]).unwrap();
        let shown: Vec<_> = CertificateDer::pem_slice_iter(identity.chain.as_bytes()).map(Result::unwrap).collect();
        assert_eq!(CaHash(Sha256::digest(&shown[1]).into()), ca.hash);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.certificate.as_bytes()).unwrap()).unwrap();
        let provider = aws_lc_rs::default_provider().into();
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
        let verify = |name: &'static str| {
            let name = ServerName::try_from(name).unwrap();
            verifier.verify_server_cert(
                &shown[0],
                &[],
                &name,
                &[],
                UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000)),
            )
        };
        for name in [SERVER_NAME, "belfry1.example", "10.0.0.1"] {
            verify(name).unwrap();
        }
        assert!(verify("evil.example").is_err());
    }
}
