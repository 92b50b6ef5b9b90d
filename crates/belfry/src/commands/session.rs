//! `login`, `logout`, `whoami`. A login makes a token of its own, so that it can be seen and taken back, and keeps only that.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{Context, password, read};
use crate::cli::LoginArgs;
use crate::client::{Client, Credential, SavedLogin, SavedLogins, grants_in_words, saved_logins_path};
use crate::exit::{Exit, NotFound};
use crate::print::Word;

/// How long a saved login is good.
const LOGIN_GOOD_FOR: &str = "90d";

pub async fn login(args: &LoginArgs, context: &Context) -> anyhow::Result<Exit> {
    let path = saved_logins_path().context("there is no home directory to save a login in; set HOME")?;
    let found = context.found()?;
    let client = Client::new(&found.url, found.ca.as_deref(), Credential::None)?;
    let user = match &args.user {
        Some(user) => user.clone(),
        None => password::ask_name(&format!("User at {}", client.url()))?,
    };
    let password = password::ask(&format!("Password of {user}"), args.password_stdin)?;
    let session = client.with(client.session(&user, &password).await?);
    let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let label = format!("belfry login on {host}");
    let token = session.post(&["tokens"], json!({ "label": label, "expires_in": LOGIN_GOOD_FOR })).await?;
    session.post(&["logout"], Value::Null).await?;

    let text =
        |key: &str| token[key].as_str().map(str::to_owned).with_context(|| format!("the new token has no {key}"));
    let mut saved = SavedLogins::read(&path);
    let login = SavedLogin { user: user.clone(), token: text("secret")?, token_id: text("id")?, ca: found.ca.clone() };
    saved.remember(client.url(), login);
    saved.write(&path).with_context(|| format!("save the login in {}", path.display()))?;
    context.print.say(&format!(
        "logged in as {user} at {} for {LOGIN_GOOD_FOR}; saved in {}",
        client.url(),
        path.display()
    ));
    if context.print.json {
        context.print.json(&json!({ "url": client.url(), "user": user }))?;
    }
    Ok(Exit::Done)
}

/// Of the server named, else of the last login.
pub async fn logout(context: &Context) -> anyhow::Result<Exit> {
    let path = saved_logins_path().context("there is no home directory; set HOME")?;
    let mut saved = SavedLogins::read(&path);
    let named = context.choice.url.as_deref().map(|url| url.trim_end_matches('/').to_owned());
    let url = named.or_else(|| saved.current().map(|(url, _)| url.to_owned()));
    let Some((url, login)) = url.and_then(|url| saved.forget(&url).map(|login| (url, login))) else {
        return Err(NotFound("there is no saved login".to_owned()).into());
    };
    saved.write(&path).with_context(|| format!("save {}", path.display()))?;
    let client = Client::new(&url, login.ca.as_deref(), Credential::Token(login.token))?;
    match client.delete(&["tokens", &login.token_id], &Vec::new()).await {
        Ok(_) => context.print.say(&format!("logged out of {url}")),
        Err(error) => {
            context.print.say(&format!("forgot the login at {url}; its token could not be removed there: {error}"))
        }
    }
    Ok(Exit::Done)
}

pub async fn whoami(context: &Context) -> anyhow::Result<Exit> {
    let found = context.found()?;
    let answer = context.client()?.get(&["whoami"], &Vec::new()).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let grants: BTreeMap<String, String> = read(&answer["grants"])?;
    let text = |key: &str| Word::from(answer[key].as_str().unwrap_or("-"));
    context.print.facts(vec![
        ("name", text("name")),
        ("may", grants_in_words(&grants).into()),
        ("by", text("signed_in_with")),
        ("server", format!("{} ({})", found.url, found.source).into()),
        ("version", text("version")),
        ("zone", text("default_timezone")),
    ])?;
    Ok(Exit::Done)
}
