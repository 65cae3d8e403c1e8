package org.apache.nifi.kerberos;

import org.apache.nifi.controller.ControllerService;
import org.apache.nifi.security.krb.KerberosUser;

/** Place of a class that no registry has; see {@link KerberosUser}. */
public interface KerberosUserService extends ControllerService {
  KerberosUser createKerberosUser();
}
