//! Holds a file to the digests that its job names: on the very bytes that are executed, whatever becomes of the file meanwhile.

use std::io::Read;
use std::path::{Path, PathBuf};

use belfry_core::job::{Action, Signature};
use belfry_exec::{SealError, Sealed};
use md5::Md5;
use sha2::{Digest, Sha256};

use crate::prepare::{CANNOT_RUN, CannotStart};

const CHUNK_BYTES: usize = 64 * 1024;
const NOT_FOUND: i32 = 127;

/// `place`: where the machine's policy has found what the job executes. What is signed must be just that, whoever says otherwise: the policy
/// has looked at nothing else.
pub(crate) async fn sealed(
    signature: Signature,
    action: &Action,
    place: Option<PathBuf>,
) -> Result<Sealed, CannotStart> {
    if !matches!(action, Action::Exec(exec) if exec.argv.first() == Some(&signature.file)) {
        let reason = format!("signature: {} is signed, which is not what the job executes", signature.file);
        return Err(CannotStart::skipped(reason));
    }
    let looked = tokio::task::spawn_blocking(move || look(&signature, place.as_deref())).await;
    looked.unwrap_or_else(|cause| Err(CannotStart::failed(cause.to_string(), CANNOT_RUN)))
}

fn look(signature: &Signature, place: Option<&Path>) -> Result<Sealed, CannotStart> {
    let sealed = Sealed::copy(place.unwrap_or(Path::new(&signature.file))).map_err(|cause| match &cause {
        SealError::Read { cause: why, .. } if why.kind() == std::io::ErrorKind::NotFound => {
            CannotStart::failed(cause.to_string(), NOT_FOUND)
        }
        _ => CannotStart::failed(cause.to_string(), CANNOT_RUN),
    })?;
    let (mut sha256, mut md5) = (Sha256::new(), Md5::new());
    let (mut bytes, mut chunk) = (sealed.bytes(), vec![0; CHUNK_BYTES]);
    loop {
        match bytes.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => {
                sha256.update(&chunk[..count]);
                md5.update(&chunk[..count]);
            }
            Err(cause) => return Err(CannotStart::failed(format!("read a program in memory: {cause}"), CANNOT_RUN)),
        }
    }
    drop(bytes);
    let found = [("sha256", hex(&sha256.finalize()), &signature.sha256), ("md5", hex(&md5.finalize()), &signature.md5)];
    for (name, found, wanted) in found {
        if let Some(wanted) = wanted.as_ref().filter(|wanted| !wanted.eq_ignore_ascii_case(&found)) {
            let file = &signature.file;
            return Err(CannotStart::skipped(format!(
                "signature: {file} has {name} {found}, and the job says {wanted}"
            )));
        }
    }
    Ok(sealed)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
