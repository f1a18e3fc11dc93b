// An issuer for tests: oidc-provider behind TLS on loopback. Usage: node provider.mjs CERTIFICATE KEY.
// It prints its issuer URL, and ends when its stdin does, so that it never outlives the test that started it.
import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import https from 'node:https';
import { exportJWK, SignJWT } from 'jose';
import Provider from 'oidc-provider';

const [certificate, keyFile] = process.argv.slice(2);
const server = https.createServer({ cert: readFileSync(certificate), key: readFileSync(keyFile) });
await new Promise((resolve) => { server.listen(0, '127.0.0.1', resolve); });
const issuer = `https://127.0.0.1:${server.address().port}`;

const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
const jwk = { ...await exportJWK(privateKey), kid: randomUUID(), alg: 'RS256', use: 'sig' };

const provider = new Provider(issuer, {
  clients: [{
    client_id: 'pinniped-cli', application_type: 'native', token_endpoint_auth_method: 'none',
    redirect_uris: ['http://127.0.0.1/callback'], response_types: ['code'],
    grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code', 'urn:ietf:params:oauth:grant-type:token-exchange'],
  }],
  jwks: { keys: [jwk] },
  cookies: { keys: [randomUUID()] },
  scopes: ['openid', 'offline_access', 'username', 'groups', 'pinniped:request-audience'],
  claims: { openid: ['sub'], username: ['username'], groups: ['groups'] },
  conformIdTokenClaims: false,
  pkce: { required: () => true, methods: ['S256'] },
  findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id, username: id, groups: ['developers'] }) }),
  features: { deviceFlow: { enabled: true }, revocation: { enabled: true } },
  ttl: { AccessToken: 300, AuthorizationCode: 60, DeviceCode: 120, IdToken: 3600, RefreshToken: 86400, Grant: 86400, Interaction: 600, Session: 86400 },
});

// A Supervisor's token exchange (RFC 8693).
const exchange = 'urn:ietf:params:oauth:grant-type:token-exchange';
provider.registerGrantType(exchange, async (ctx, next) => {
  const { audience, subject_token: subject } = ctx.oidc.params;
  const token = await provider.AccessToken.find(subject);
  if (!token) {
    ctx.status = 400;
    ctx.body = { error: 'invalid_grant', error_description: 'the subject token is not valid' };
    return next();
  }
  ctx.body = {
    access_token: await new SignJWT({ username: token.accountId, groups: ['developers'] })
      .setProtectedHeader({ alg: 'RS256', kid: jwk.kid }).setIssuer(issuer).setAudience(audience).setSubject(token.accountId)
      .setIssuedAt().setExpirationTime('5m').sign(privateKey),
    issued_token_type: 'urn:ietf:params:oauth:token-type:jwt', token_type: 'N_A',
  };
  return next();
}, ['audience', 'subject_token', 'subject_token_type', 'requested_token_type', 'scope']);

server.on('request', provider.callback());
process.stdin.resume().on('end', () => process.exit(0));
console.log(issuer);
