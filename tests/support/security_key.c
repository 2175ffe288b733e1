/* A security key in software, as a provider of OpenSSH (SSH_SK_PROVIDER): ecdsa-sk keys, whose private half is the handle.
 *
 * What a provider is: sk-api.h and PROTOCOL.u2f of OpenSSH. A signature is of SHA256(application), flags, counter (32 bits, big
 * endian), SHA256(data). It protects nothing; the flag of a touch is always set.
 */
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/ecdsa.h>
#include <openssl/obj_mac.h>
#include <openssl/sha.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 0x000a0000, UNSUPPORTED = -2, FAILED = -1, SCALAR = 32, POINT = 65 };

struct enrolled {
    uint8_t flags;
    uint8_t *public_key; size_t public_key_len;
    uint8_t *key_handle; size_t key_handle_len;
    uint8_t *signature; size_t signature_len;
    uint8_t *attestation_cert; size_t attestation_cert_len;
    uint8_t *authdata; size_t authdata_len;
};

struct signed_data {
    uint8_t flags;
    uint32_t counter;
    uint8_t *sig_r; size_t sig_r_len;
    uint8_t *sig_s; size_t sig_s_len;
};

uint32_t sk_api_version(void) { return VERSION; }

int sk_enroll(uint32_t algorithm, const uint8_t *challenge, size_t challenge_len, const char *application, uint8_t flags,
              const char *pin, void **options, struct enrolled **answer) {
    EC_KEY *key = EC_KEY_new_by_curve_name(NID_X9_62_prime256v1);
    struct enrolled *made = calloc(1, sizeof *made);
    (void)challenge, (void)challenge_len, (void)application, (void)pin, (void)options;
    if (algorithm != 0) return UNSUPPORTED;
    if (!made || !key || !EC_KEY_generate_key(key)) return FAILED;
    made->flags = flags;
    made->public_key = malloc(POINT), made->public_key_len = POINT;
    made->key_handle = malloc(SCALAR), made->key_handle_len = SCALAR;
    made->signature = calloc(1, 1), made->signature_len = 1;
    EC_POINT_point2oct(EC_KEY_get0_group(key), EC_KEY_get0_public_key(key), POINT_CONVERSION_UNCOMPRESSED, made->public_key, POINT, NULL);
    BN_bn2binpad(EC_KEY_get0_private_key(key), made->key_handle, SCALAR);
    *answer = made;
    EC_KEY_free(key);
    return 0;
}

int sk_sign(uint32_t algorithm, const uint8_t *data, size_t data_len, const char *application, const uint8_t *handle,
            size_t handle_len, uint8_t flags, const char *pin, void **options, struct signed_data **answer) {
    EC_KEY *key = EC_KEY_new_by_curve_name(NID_X9_62_prime256v1);
    struct signed_data *made = calloc(1, sizeof *made);
    uint8_t message[SHA256_DIGEST_LENGTH * 2 + 5], digest[SHA256_DIGEST_LENGTH];
    BIGNUM *scalar = BN_bin2bn(handle, (int)handle_len, NULL);
    ECDSA_SIG *signature;
    (void)pin, (void)options;
    if (algorithm != 0 || handle_len != SCALAR) return UNSUPPORTED;
    if (!made || !key || !scalar || !EC_KEY_set_private_key(key, scalar)) return FAILED;
    made->flags = flags | 1, made->counter = 7;
    SHA256((const uint8_t *)application, strlen(application), message);
    message[SHA256_DIGEST_LENGTH] = made->flags;
    memcpy(message + SHA256_DIGEST_LENGTH + 1, "\0\0\0\7", 4);
    SHA256(data, data_len, message + SHA256_DIGEST_LENGTH + 5);
    SHA256(message, sizeof message, digest);
    if (!(signature = ECDSA_do_sign(digest, sizeof digest, key))) return FAILED;
    made->sig_r = malloc(SCALAR), made->sig_r_len = SCALAR;
    made->sig_s = malloc(SCALAR), made->sig_s_len = SCALAR;
    BN_bn2binpad(ECDSA_SIG_get0_r(signature), made->sig_r, SCALAR);
    BN_bn2binpad(ECDSA_SIG_get0_s(signature), made->sig_s, SCALAR);
    *answer = made;
    ECDSA_SIG_free(signature), EC_KEY_free(key), BN_free(scalar);
    return 0;
}

int sk_load_resident_keys(const char *pin, void **options, void ***keys, size_t *count) {
    (void)pin, (void)options;
    *keys = NULL, *count = 0;
    return 0;
}
